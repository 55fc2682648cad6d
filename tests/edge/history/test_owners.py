"""A history belongs to one process and one opening, and holds text alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.errors import HistoryError
from refocus.edge.history import profile_file
from refocus.edge.history.feature_history import FeatureHistory

ROW = np.ones(4, np.float32)
NO_TEXT = os.fsdecode(b"caf\xe9.png")  # a file's name that is not UTF-8

FORKED = """
import os, sys
from pathlib import Path
import numpy as np
from refocus.edge.errors import HistoryError
from refocus.edge.history import FeatureHistory
row = np.ones(4, np.float32)
history = FeatureHistory(Path(sys.argv[1]), capacity=10_000)
for number in range(4):
    history.append("s", f"before {number}", row)
child = os.fork()
if child == 0:
    refused = 0
    for work in (lambda: history.append("s", "of the child", row), lambda: history.count("s"), history.version):
        try:
            work()
        except HistoryError as error:
            refused += "before this process was forked" in str(error)
    history.close()
    with FeatureHistory(Path(sys.argv[1]), capacity=10_000) as own:
        for number in range(200):
            own.append("s", f"child {number}", row)
    os._exit(0 if refused == 3 else 1)
for number in range(200):
    history.append("s", f"parent {number}", row)
_, status = os.waitpid(child, 0)
history.close()
with FeatureHistory(Path(sys.argv[1]), capacity=10_000) as history:
    print(os.waitstatus_to_exitcode(status), history.count("s"), history.recovered)
"""


def test_an_identity_that_is_no_text_is_refused_and_nothing_is_lost_by_it(tmp_path):
    with FeatureHistory(tmp_path / "p") as history:
        for photo in ("one", "two", "three"):
            history.append("s", photo, ROW)
        for store in (
            lambda: history.append("s", NO_TEXT, ROW),
            lambda: history.append(NO_TEXT, "four", ROW),
            lambda: history.set_label(NO_TEXT, "owl"),
            lambda: history.set_label("one", NO_TEXT),
        ):
            with pytest.raises(HistoryError, match=r"is not text in UTF-8.*it was not stored"):
                store()
        history.append("s", "vier 四", ROW)
    with FeatureHistory(tmp_path / "p") as history:
        assert history.photos("s") == {"one", "two", "three", "vier 四"}
        assert history.recovered is None


def test_a_history_is_refused_after_a_fork_and_both_processes_keep_their_photos(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORKED, tmp_path / "p"], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "404", "None"], done.stdout + done.stderr


def test_a_closed_history_says_so(tmp_path):
    history = FeatureHistory(tmp_path / "p")
    history.append("s", "one", ROW)
    history.close()
    history.close()
    for use in (
        lambda: history.append("s", "two", ROW),
        lambda: history.recent("s", 1, 4),
        lambda: history.look("s", "one"),
        lambda: history.set_label("one", "owl"),
        history.labels,
        history.version,
        history.verify,
        history.erase,
    ):
        with pytest.raises(HistoryError, match="this history is closed; open it again"):
            use()


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_a_history_that_nobody_closes_gives_its_files_back(tmp_path):
    def open_and_forget():
        history = FeatureHistory(tmp_path / "p")
        for photo in ("one", "two", "three"):
            history.append("s", photo, ROW)

    open_and_forget()
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        open_and_forget()
        gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not profile_file._CONNECTED  # or the next opening would not look at the file's header
    with FeatureHistory(tmp_path / "p") as history:
        assert history.photos("s") == {"one", "two", "three"}

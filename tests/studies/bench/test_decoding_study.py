"""The study of decoding: its rows say what a decoder does, and a control that decodes too small is seen."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from refocus.cloud_train.errors import UsageError
from refocus.edge.photos import decode_photo
from studies.bench import decoding
from studies.bench.decoding import Variant, enlarged, study_decoding
from studies.report.pages import STUDIES


def test_an_enlarged_photo_has_the_megapixels_and_the_noise_that_were_asked_for():
    photo = Image.new("RGB", (400, 300), (128, 128, 128))
    plain, noisy = (decode_photo(enlarged(photo, Variant(2, 92, noise)), "x") for noise in (0.0, 8.0))
    assert plain.size == noisy.size == (1633, 1225)
    assert np.asarray(plain).std() < 1
    assert 3 < np.asarray(noisy, dtype=float)[..., 1].std() < 9


def test_rows_count_labels_and_pair_accuracies():
    photos = [{"full": full, "scaled": scaled, "cosine": cosine, "levels_mean": 0.5, "levels_max": 3.0}
              for full, scaled, cosine in ((1, 1, 0.9), (2, 2, 1.0), (3, 4, 0.8), (5, 4, 0.7))]  # fmt: skip
    row = decoding._row(Variant(3, 75), photos, np.array([1, 0, 4, 5]))
    assert (row["photos"], row["same_top1"], row["full"], row["scaled"]) == (4, 0.5, 0.5, 0.5)
    assert row["gain"]["mean"] == 0
    assert row["gain"]["low"] < 0 < row["gain"]["high"]
    assert row["cosine"] == {"least": 0.7, "mean": pytest.approx(0.85)}
    assert row["what"] == ""


def test_a_folder_without_photos_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected photos/CLASS.JPEG, photos/classes.txt and weights/"):
        study_decoding(str(tmp_path), tmp_path / "run", "python -m studies decoding")


@pytest.mark.slow
def test_real_photos_keep_their_labels_and_the_control_differs(real_data, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "VARIANTS", (Variant(3, 92, at_least=0.5), Variant(3, 92), Variant(6, 75)))
    document = study_decoding(str(real_data), tmp_path / "run", "python -m studies decoding", photos=6)
    control, *rows = document["rows"]
    assert [row["same_top1"] for row in rows] == [1, 1]
    assert min(row["cosine"]["least"] for row in rows) > 0.99
    assert control["cosine"]["mean"] < min(row["cosine"]["mean"] for row in rows)
    header, cells = STUDIES["decoding"].table(document)
    assert len(cells) == 3
    assert len(header) == len(cells[0])
    assert "100.0% of all files get the same best label, in the worst row 100.0%" in STUDIES["decoding"].about(document)
    again = study_decoding(
        str(real_data), tmp_path / "run", "python -m studies decoding", photos=6
    )  # goes on: nothing anew
    assert again == document

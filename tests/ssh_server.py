"""A real SSH server on the loopback address, whose user's home is a folder: a board for tests of ``bench --host``."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
needs_sshd = pytest.mark.skipif(
    not SSHD and not os.environ.get("REFOCUS_CI"), reason="no sshd here (Debian: apt install openssh-server)"
)


def packages_of_a_board(folder: Path) -> Path:
    """Fills a folder with this environment's packages without Refocus: what is pushed is what runs."""
    for path in Path(next(p for p in sys.path if p.endswith("site-packages"))).iterdir():
        if "refocus" not in path.name and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


class Server:
    """An SSH server of our own, whose user's home is a folder of the test."""

    def __init__(self, folder, packages=None, path=""):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "keys").write_text((folder / "user.pub").read_text())
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        # Packages that a board has already: those of this environment but for Refocus itself.
        environment = {"HOME": self.home, "PATH": f"{path}{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
        if packages:
            environment["PYTHONPATH"] = packages
        lines = [
            f"HostKey {folder / 'host'}", f"AuthorizedKeysFile {folder / 'keys'}", "StrictModes no", "UsePAM no",
            f"PidFile {folder / 'pid'}", "ForceCommand cd $HOME && eval \"$SSH_ORIGINAL_COMMAND\"",
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environment.items()),
        ]  # fmt: skip
        (folder / "config").write_text("\n".join(lines) + "\n")
        self.process = None
        self.start()

    def start(self):
        command = [
            SSHD,
            "-D",
            "-e",
            "-f",
            self.folder / "config",
            "-p",
            str(self.port),
            "-o",
            "ListenAddress=127.0.0.1",
        ]
        Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True)
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self):
        """Ends the server and every connection, as an unplugged cable does."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    @property
    def options(self):
        known = self.folder / "known"
        return ["-p", str(self.port), "-i", str(self.folder / "user"), "-o", f"UserKnownHostsFile={known}",
                "-o", "StrictHostKeyChecking=no", "-F", "none"]  # fmt: skip

    @property
    def host(self):
        return f"{getpass.getuser()}@127.0.0.1"

    def left(self):
        """Folders that Refocus has left on the board, sorted."""
        return sorted(str(path.relative_to(self.home)) for path in (self.home / ".cache").glob("*"))

"""One broker of a local cluster: an ordinary child process that can be killed, stopped and restarted."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.frozen import freeze

__all__ = ["Node"]

_GONE_WITHIN_S = 30  # a killed process is gone at once, unless the kernel is busy writing its memory out

_ENDS_WITHIN_S = 120  # a broker takes leave of its controller, which may be itself


class Node:
    """A process that is started again and again with the same command, on the same ports and data."""

    def __init__(self, node_id: int, address: str, directory: Path, command: Sequence[str]) -> None:
        self.node_id = node_id
        self.address = address
        self.log_path = directory / "log"
        self.paused = False
        self._directory = directory
        self._pid_path = directory / "pid"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = "paused" if self.paused else "running" if self.alive else "down"
        return f"<Node {self.node_id} {self.address} {state}>"

    @property
    def alive(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"not started yet: {self!r}"
        return self._process.pid

    def start(self) -> None:
        """Start the process, with the ports and the data it had before. It serves after `wait_ready`."""
        assert not self.alive, f"started already: {self!r}"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                # The process writes down its own id before it becomes a broker: the janitor misses none.
                ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._pid_path), *self._command],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Not in the terminal's process group: Ctrl-C goes to the tests, which stop the brokers last.
                start_new_session=True,
            )
        self.paused = False

    def kill(self) -> None:
        """`kill -9`; returns when the process is gone."""
        assert self._process is not None, f"not started yet: {self!r}"
        self._process.kill()
        self._process.wait(_GONE_WITHIN_S)
        self._pid_path.unlink(missing_ok=True)
        self.paused = False

    def end(self) -> None:
        """`SIGTERM`; returns when the process has ended by itself."""
        assert self._process is not None, f"not started yet: {self!r}"
        self._process.terminate()
        self._process.wait(_ENDS_WITHIN_S)
        self._pid_path.unlink(missing_ok=True)

    def pause(self) -> None:
        """`SIGSTOP`: connections stay open and nothing answers. Returns when the process stands still."""
        assert self.alive, f"nothing to pause: {self!r}"
        freeze(self.pid)
        self.paused = True

    def resume(self) -> None:
        """`SIGCONT`: the process goes on where it stood."""
        assert self.alive, f"nothing to resume: {self!r}"
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def log_tail(self, lines: int = 30) -> str:
        """The end of what the process wrote to its output."""
        try:
            written = self.log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            written = []
        return "\n".join(written[-lines:]) or "(nothing written)"

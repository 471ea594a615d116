"""One life of the publishing process, as its parent sees it: start it, listen to it, kill it."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.child import Task
from tests.crash.forking import Forked

__all__ = ["Child", "ChildFailedError"]

_REPOSITORY = Path(__file__).parents[2]
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_START_WITHIN_S = 60.0  # a machine with other work; opening itself takes milliseconds
_STANDS_OR_ENDED = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG  # WNOWAIT: Popen reads its end
_STOP_WITHIN_S = 60.0


class ChildFailedError(AssertionError):
    """A publishing process did not do what it was told; its log is attached."""


class Child:
    """One life of the publishing process. What it reports is read at once, so that it never waits for us."""

    def __init__(self, task: Task, log: Path, prefix: Sequence[str] = ()) -> None:
        """Start it; `report_fd` and `parent_pid` of the task are filled in here.

        ``prefix``: a command that becomes the process that is given to it (`nsenter …`).
        """
        read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        task = Task(**{**asdict(task), "report_fd": write_end, "parent_pid": os.getpid()})
        self.task = task
        self.killed = False
        self.crashed = False
        """It killed itself where it was told to (`Task.crash`)."""
        self._log = log
        self._words: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reports = bytearray()
        with log.open("ab") as errors:
            self._process = _process(task, prefix, errors.fileno())
        os.close(write_end)
        self._readers = [
            threading.Thread(target=self._read_words, daemon=True),
            threading.Thread(target=self._read_reports, args=[read_end], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, word: str, timeout_s: float = _START_WITHIN_S, *, times: int = 1) -> str:
        """Wait until it has said so (so many times); the rest of that line."""
        if not self._comes_to(word, timeout_s, times):
            self.kill()
            raise self._failure(f"the child did not say {word!r} {times} time(s) within {timeout_s} s")
        return self._said(word)[times - 1]

    def comes_to(self, word: str, timeout_s: float = _START_WITHIN_S, *, times: int = 1) -> bool:
        """As `wait_for`, of one that may kill itself before that (`Task.crash`): False then."""
        if self._comes_to(word, timeout_s, times):
            return True
        if self._ended and self.wait_dead(_STOP_WITHIN_S):
            return False
        self.kill()
        raise self._failure(f"the child neither said {word!r} {times} time(s) within {timeout_s} s nor killed itself")

    def _comes_to(self, word: str, timeout_s: float, times: int) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or len(self._said(word)) >= times, timeout_s)
            return len(self._said(word)) >= times

    def tell(self) -> None:
        """End its step `wait`."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def terminate(self) -> None:
        """SIGTERM, once it has opened: what it is about is cancelled, and it stops; `finish` waits for that."""
        self._process.terminate()
        with contextlib.suppress(BrokenPipeError):  # it has come to its end by itself
            self.tell()  # a thread that waits for a line cannot be cancelled

    @property
    def opened(self) -> bool:
        """Its directory; from then on it can be terminated."""
        return bool(self._said("opened"))

    @property
    def running(self) -> bool:
        """It has not come to its end."""
        return self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`; returns when it is gone and all that it had said is here."""
        self.killed = True
        self._process.kill()
        self._reap(_STOP_WITHIN_S)

    def suspend(self, seconds: float) -> None:
        """It stands still for so long; the broker sees its connections, and hears nothing."""
        self.stand_still()
        time.sleep(seconds)
        self.go_on()

    def wait_still(self, timeout_s: float = _START_WITHIN_S) -> None:
        """Wait until it stands still by itself (`Task.still`)."""
        until = time.monotonic() + timeout_s
        while (found := os.waitid(os.P_PID, self._process.pid, _STANDS_OR_ENDED)) is None:
            if time.monotonic() > until:
                self.kill()
                raise self._failure(f"the child did not come to where it stands still within {timeout_s} s")
            time.sleep(0.01)
        if found.si_code != os.CLD_STOPPED:
            raise self._failure("the child ended before it stood still")

    def stand_still(self) -> None:
        """From outside, until it shall `go_on`; the broker sees its connections, and hears nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It stood still."""
        self._process.send_signal(signal.SIGCONT)

    def wait_dead(self, timeout_s: float) -> bool:
        """Wait for it to kill itself (`Task.crash`), but not longer; kill it then. Whether it did."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self.killed = self.crashed = True
        self._reap(_STOP_WITHIN_S)
        if self._process.returncode != -signal.SIGKILL:
            raise self._failure(f"the child ended with status {self._process.returncode}, not by its own kill")
        return True

    def finish(self, timeout_s: float = _STOP_WITHIN_S) -> dict[str, Any]:
        """Let it come to its end by itself; its last statistics, what was `left`, and what that took (`stop_s`)."""
        told = self.wait_for("stopped", timeout_s)
        self._reap(timeout_s)
        if self._process.returncode != 0:
            raise self._failure(f"the child ended with status {self._process.returncode}")
        statistics: dict[str, Any] = json.loads(told)
        return statistics

    @property
    def words(self) -> Sequence[str]:
        """Everything it said on its stdout."""
        return self._words

    @property
    def reports(self) -> list[list[bytes]]:
        """The reports that came whole, split into their parts; the child is gone."""
        whole, _, _ = bytes(self._reports).rpartition(b"\n")
        return [line.split(b" ") for line in whole.split(b"\n")] if whole else []

    def _said(self, word: str) -> list[str]:
        return [line[len(word) + 1 :] for line in self._words if line.split(" ")[0] == word]

    def _reap(self, timeout_s: float) -> None:
        self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read_words(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._words.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _read_reports(self, descriptor: int) -> None:
        while block := os.read(descriptor, _READ_BYTES):
            self._reports += block
        os.close(descriptor)

    def _failure(self, what: str) -> ChildFailedError:
        tail = self._log.read_text(errors="replace")[-4000:]
        return ChildFailedError(f"{what} life={self.task.life} seed={self.task.seed} said={self._words}\n{tail}")


def _process(task: Task, prefix: Sequence[str], errors: int) -> Forked | subprocess.Popen[bytes]:
    if not prefix:
        return Forked(asdict(task), stderr=errors, report=task.report_fd)
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.crash.child", json.dumps(asdict(task))],
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        pass_fds=[task.report_fd],
    )

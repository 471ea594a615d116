"""Lives of `tests.crash.child`, forked by a process that has imported everything and has done nothing else.

To import takes 0.4 s of a core, for each of some hundred lives; to fork, a hundredth of that. A life is a child of who
asks for it, which can wait for it, and see it stand still: it is forked twice, the one in between ends at once, and who
says that he takes orphans is the parent from then on.
"""

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.crash import child

__all__ = ["Forked"]

_REPOSITORY = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST = 1 << 17  # bytes of a task
_ADOPTED_LOOK_S = 0.001


class Forked:
    """What of `subprocess.Popen` a `Child` uses; stdin and stdout are pipes.

    ``task``: of `child.Task`; ``stderr`` and ``report``, which is its `report_fd`, are descriptors.
    """

    def __init__(self, task: Mapping[str, Any], *, stderr: int, report: int) -> None:
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        try:
            self.pid = _forker().fork(json.dumps(task).encode(), [its_stdin, its_stdout, stderr, report])
        finally:
            os.close(its_stdin)
            os.close(its_stdout)
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout = os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """As `Popen.poll`."""
        with self._reaping:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `Popen.wait`."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                looking = select.poll()
                looking.register(ended, select.POLLIN)
                looking.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(ended)
        found = self.poll()
        if found is None:
            raise subprocess.TimeoutExpired(["tests.crash.child"], timeout or 0.0)
        return found

    def send_signal(self, number: signal.Signals) -> None:
        """As `Popen.send_signal`."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """As `Popen.terminate`."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As `Popen.kill`."""
        self.send_signal(signal.SIGKILL)


class _Forker:
    """The process that forks, as who asks it sees it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.forking", str(theirs.fileno())],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, task: bytes, files: list[int]) -> int:
        """The new process's id."""
        with self._asking, _taking_orphans():
            socket.send_fds(self._socket, [task], files)
            answer = self._socket.recv(_LONGEST)
        assert answer, "the process that forks has ended"
        return int(answer)

    def stop(self) -> None:
        """It has no more to do."""
        self._socket.close()
        self._process.wait()


@cache
def _forker() -> _Forker:
    forker = _Forker()
    atexit.register(forker.stop)
    return forker


@contextmanager
def _taking_orphans() -> Iterator[None]:
    """Only so long: the tests' processes leave others behind, too."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)) == 0
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))


def _serve(asked: socket.socket) -> None:
    """Fork for each task that comes; also returns in those that were forked, at their end."""
    while True:
        task, files, _, _ = socket.recv_fds(asked, _LONGEST, 4)
        if not task:
            return
        told, tells = os.pipe()
        between = os.fork()
        if between == 0:
            _fork_again(task, files, tells, asked)
            return
        os.waitpid(between, 0)
        asked.send(os.read(told, 32))
        for descriptor in (told, tells, *files):
            os.close(descriptor)


def _fork_again(task: bytes, files: list[int], tells: int, asked: socket.socket) -> None:
    """The child of a child goes on as soon as the one in between is gone: from then on it has its right parent."""
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(tells, b"%d" % pid)
        os._exit(0)
    while os.getppid() == between:
        time.sleep(_ADOPTED_LOOK_S)
    asked.close()
    *streams, report = files
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    child.main(child.Task(**{**json.loads(task), "report_fd": report}))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

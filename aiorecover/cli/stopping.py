"""Work that a signal ends, in a bounded time, with all processes that it has started.

The work is done in a thread of its own. The main thread, to which Python hands signals, does nothing but wait for the
end of the work or for SIGINT and SIGTERM. Handlers that interrupt the work itself have no good end: raising tears
pyspark out of its talk with Java, and pyspark's own handler of SIGINT talks to Java in the middle of a talk
("reentrant call"). pyspark installs that where Spark is started in the main thread, so here it never does.

At the first signal the work is stopped, and then the processes are asked to end, and killed if they do not. A second
signal waits for none of this.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from aiorecover.cli.endings import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["descendants", "stoppable"]

# Together less than the ten seconds that `docker stop` gives before it kills.
_STOPS_WITHIN_S = 5.0  # a query of Spark and its session: a second, as a rule
_ENDS_WITHIN_S = 3.0  # Java, which removes its temporary files: half a second, as a rule
_LOOK_S = 0.02
# No wait is longer: a signal that comes just before one begins does not end it, and the handler runs behind it only.
_HEARS_WITHIN_S = 0.1

_SIGNALS = signal.SIGINT, signal.SIGTERM

_T = TypeVar("_T")


def stoppable(work: Callable[[], _T], stop: Callable[[], object]) -> _T:
    """Do the work, and return what it returns, or raise what it raises.

    ``stop`` is called at a signal, once and in a thread of its own: it is to make the work end, whatever that raises
    then. Called from another thread than the main one this hears no signals.

    Raises:
        StoppedError: a signal came first.

    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    before = descendants()
    done: Future[_T] = Future()
    heard: list[int] = []

    def hear(number: int, _frame: object) -> None:
        if heard:
            _send(signal.SIGKILL, descendants() - before)
            os._exit(StoppedError(number).status)
        heard.append(number)

    # One that is ignored stays so: a script that starts a program in the background asks for that.
    caught = {number: signal.getsignal(number) for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    for number in caught:
        signal.signal(number, hear)
    worker = threading.Thread(target=_settle, args=(done, work), name="aiorecover-work", daemon=True)
    worker.start()
    while worker.is_alive() and not heard:
        worker.join(_HEARS_WITHIN_S)
    if heard:
        # The handlers stay: a second signal ends also what is left of this process at once.
        _end(worker, stop, before)
        raise StoppedError(heard[0])
    for number, handler in caught.items():
        signal.signal(number, handler)
    return done.result()


def _settle(done: Future[_T], work: Callable[[], _T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
        done.set_exception(error)


def _end(worker: threading.Thread, stop: Callable[[], object], before: set[int]) -> None:
    stopper = threading.Thread(target=_settle, args=(Future[object](), stop), name="aiorecover-stop", daemon=True)
    stopper.start()
    until = time.monotonic() + _STOPS_WITHIN_S
    while stopper.is_alive() and time.monotonic() < until:
        stopper.join(_HEARS_WITHIN_S)
    asked, until = set[int](), time.monotonic() + _ENDS_WITHIN_S
    while (there := descendants() - before) or worker.is_alive():
        if time.monotonic() > until:
            break
        _send(signal.SIGTERM, there - asked)
        asked |= there  # those that come later, as Java after the shell that looks for it, are asked, too
        time.sleep(_LOOK_S)
    _send(signal.SIGKILL, descendants() - before)


def descendants() -> set[int]:
    """Return the process ids of the descendants that live, by proc(5); none where there is no /proc."""
    parents = dict(filter(None, map(_alive, pathlib.Path("/proc").glob("[0-9]*/stat"))))
    found, ancestors = set[int](), {os.getpid()}
    while ancestors:
        ancestors = {pid for pid, parent in parents.items() if parent in ancestors}
        found |= ancestors
    return found


def _send(number: signal.Signals, pids: set[int]) -> None:
    """Send a signal to each process that is there; ``pids`` must be fresh, since the kernel gives numbers again."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _alive(stat: pathlib.Path) -> tuple[int, int] | None:
    """Return a process and its parent; None for one that is gone, or has ended and is not waited for yet."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # before it is the name, with anything in it
    return None if state in "ZX" else (int(stat.parent.name), int(parent))

"""What aiokafka logs in our sessions: held back, counted, and told in our own lines.

In an outage aiokafka writes about eighty warnings and errors a second. A session is one thing to whoever reads the
log: one line when its state changes, with the count of what was held back and the last of it.

Whose line it is: each session runs in a context (`contextvars`) that names its `Chatter`, and every task, callback and
timer that aiokafka starts in there inherits it. The recovery check beside it has one of its own, which nobody asks:
its line says what its consumer's are about. Clients that the user makes run in the user's contexts, which never carry
it: their lines pass untouched. The filter stands on aiokafka's loggers only while a session of ours lives.
"""

import logging
import weakref
from contextvars import Context, ContextVar, copy_context

from aiokafka.errors import KafkaConnectionError

TELL_INTERVAL = 60.0  # seconds between two lines about trouble that changes no state, one broker of three for example

_OURS: ContextVar["Chatter | None"] = ContextVar("aiorecover_chatter", default=None)


class Chatter:
    """Counts the warnings and errors of one session's client.

    Debug and info lines pass: whoever turned them on wants them. So does the first of each kind with a traceback: it
    tells of something that aiokafka itself did not expect. Unless it is a broken connection: in a transaction aiokafka
    expects none while it looks for a coordinator, and we do.
    """

    def __init__(self) -> None:
        """Nothing was said."""
        self.held_back = 0
        self._last = ""
        self._cause: tuple[str, str] | None = None  # not the error itself: its traceback would keep connections open
        self._shown: set[str] = set()
        self._told = float("-inf")

    def context(self) -> Context:
        """A copy of the caller's context in which aiokafka's lines are this session's."""
        context = copy_context()
        context.run(_OURS.set, self)
        return context

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether a line of this session's client is to be seen."""
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if record.exc_info and not _of_a_connection(error) and str(record.msg) not in self._shown:
            self._shown.add(str(record.msg))
            return True
        self.held_back += 1
        args = tuple(map(worded, record.args)) if isinstance(record.args, tuple) else ()
        self._last = str(record.msg) % args if args else record.getMessage()
        named = [arg for arg in args if isinstance(arg, BaseException)]
        if named:
            self._cause = type(named[-1]).__name__, repr(named[-1])
        return False

    def take(self) -> str:
        """What to add to the next line about the session; empty when nothing was held back since the last one."""
        if not self.held_back:
            return ""
        told = f" held_back={self.held_back} last={self._last!r}"
        self.held_back = 0
        self._shown.clear()
        return told

    def take_cause(self) -> tuple[str, str] | None:
        """Class and text of the error that the client named last, since this was asked; None if it named none.

        It raises another one: of a refused password, too, it says only that it was unable to bootstrap.
        """
        cause, self._cause = self._cause, None
        return cause

    def take_due(self, now: float) -> str:
        """As `take`, but not more often than every `TELL_INTERVAL`; ``now`` in seconds."""
        if not self.held_back or now - self._told < TELL_INTERVAL:
            return ""
        self._told = now
        return self.take()


def _of_a_connection(error: BaseException | None) -> bool:
    """Whether a broken one is behind it: aiokafka raises another error from the first."""
    while error is not None:
        if isinstance(error, KafkaConnectionError):
            return True
        error = error.__cause__
    return False


def worded(said: object) -> object:
    """An error of a time limit says nothing by itself: it gets words."""
    return TimeoutError("no answer") if isinstance(said, TimeoutError) and not str(said) else said


class _Filter(logging.Filter):
    """On aiokafka's loggers: asks the session that a line belongs to, if it is one of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        chatter = _OURS.get()
        return chatter is None or chatter.passes(record)


_FILTER = _Filter()
_TALKING: "weakref.WeakSet[Chatter]" = weakref.WeakSet()


def begin(chatter: Chatter) -> None:
    """A session begins: aiokafka's loggers are filtered from now on."""
    weakref.finalize(chatter, _remove)  # a producer that is never stopped ends too
    _TALKING.add(chatter)  # afterwards: what was hung on last goes first, and is gone when `_remove` looks
    for logger in _loggers():
        logger.addFilter(_FILTER)  # once, however often it is added


def end(chatter: Chatter) -> None:
    """A session has ended: with the last one goes the filter."""
    _TALKING.discard(chatter)
    _remove()


def _remove() -> None:
    if not _TALKING:
        for logger in _loggers():
            logger.removeFilter(_FILTER)


def _loggers() -> list[logging.Logger]:
    """A filter sees only the lines of its own logger, not those of the loggers below: each needs it."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.split(".")[0] == "aiokafka"]
    return [logging.getLogger(name) for name in names]

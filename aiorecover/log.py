"""Our loggers: what a handler raises, or who else has a hand in a line, stops nobody who logs.

`logging` lets whatever a handler's `emit` raises through to whoever logs; only those of the standard library keep it
from him. Delivery logs where an exception would end it: between a task that has ended and the one begun in its place.
So it is caught in the logger, behind which all handlers are, those of the root too, and told as `logging` tells of it
itself. The loggers stay what they are otherwise, of whatever class the user has them made.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

NAMES = ("aiorecover", "aiorecover.spark")

_teller = logging.NullHandler()  # for its `handleError`, which asks `logging.raiseExceptions`
_told: set[type] = set()  # once each: a handler that fails does so for every line


def guard() -> None:
    """Have all loggers of ours keep what is raised behind them from whoever logs."""
    for logger in map(logging.getLogger, NAMES):
        logger.handle = partial(_handle, logger.handle)  # type: ignore[method-assign]
        logger.makeRecord = partial(_make_record, logger.makeRecord)  # type: ignore[method-assign]


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Have the filters and handlers see it."""
    try:
        handle(record)
    except (KeyboardInterrupt, SystemExit):  # a signal may come while a line is written
        raise
    except BaseException:  # noqa: BLE001 - whatever it is, it is not about what is logged
        _tell(record)


def _make_record(make: Callable[..., logging.LogRecord], *args: Any, **options: Any) -> logging.LogRecord:
    """As `logging.setLogRecordFactory` says; where that fails a plain one, or the line would be lost."""
    try:
        return make(*args, **options)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - as above
        record = logging.LogRecord(*args[:8])
        record.stack_info = args[9] if len(args) > 9 else None  # noqa: PLR2004 - behind ``extra``: ours never have one
        _tell(record)
        return record


def _tell(record: logging.LogRecord) -> None:
    """What was raised just now, on stderr."""
    kind = type(sys.exception())
    if kind in _told:
        return
    _told.add(kind)
    with suppress(Exception):  # it may be closed
        _teller.handleError(record)

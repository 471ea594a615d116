"""The package's loggers: an exception of a handler, a filter or a record factory does not reach the code that logs.

`logging` lets what a handler's `emit` raises through to the caller; only the standard library's own handlers catch it.
Delivery logs at places where an exception would end it. So the loggers catch it, and report it on stderr as `logging`
does. They stay what they are otherwise, of whatever class the user has them made.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

NAMES = ("aiorecover", "aiorecover.spark")

_reporter = logging.NullHandler()  # for its `handleError`, which asks `logging.raiseExceptions`
_told: set[type] = set()  # types of errors, once each: a handler that fails does so for every line


def guard() -> None:
    """Have the package's loggers catch what is raised in them."""
    for logger in map(logging.getLogger, NAMES):
        logger.handle = partial(_handle, logger.handle)  # type: ignore[method-assign]
        logger.makeRecord = partial(_make_record, logger.makeRecord)  # type: ignore[method-assign]


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Hand a record to filters and handlers."""
    try:
        handle(record)
    except (KeyboardInterrupt, SystemExit):  # a signal may come while a line is written
        raise
    except BaseException:  # noqa: BLE001 - whatever it is, it is not about what is logged
        _tell(record)


def _make_record(make: Callable[..., logging.LogRecord], *args: Any, **options: Any) -> logging.LogRecord:
    """Return a record of the user's factory (`logging.setLogRecordFactory`), or a plain one where that fails."""
    try:
        return make(*args, **options)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - as above
        record = logging.LogRecord(*args[:8])
        record.stack_info = args[9] if len(args) > 9 else None  # noqa: PLR2004 - after ``extra``, which our lines never have
        _tell(record)
        return record


def _tell(record: logging.LogRecord) -> None:
    """Report the exception that is handled now on stderr."""
    kind = type(sys.exception())
    if kind in _told:
        return
    _told.add(kind)
    with suppress(Exception):  # it may be closed
        _reporter.handleError(record)

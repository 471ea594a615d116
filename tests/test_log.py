"""Who logs is not stopped by who handles his lines, whatever they raise; all else is as with any logger."""

import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aiorecover
from aiorecover import log as module

ROOT = Path(aiorecover.__file__).parent


class Odd(BaseException):
    """No `Exception`."""


class Raising(logging.Handler):
    """Raises from `emit` itself, as one does that sends lines somewhere."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_told", set())


@pytest.fixture(params=["aiorecover", "", "aiorecover.delivery"])
def added(request: pytest.FixtureRequest) -> Iterator[Callable[[logging.Handler], None]]:
    """Adds a handler to one of the loggers that our lines come by."""
    logger, before = logging.getLogger(request.param), logging.getLogger(request.param).handlers[:]
    yield logger.addHandler
    logger.handlers[:] = before


@pytest.mark.parametrize(
    "error",
    [OSError(28, "no space"), Odd(), GeneratorExit(), RecursionError()],
    ids=lambda error: type(error).__name__,
)
def test_what_a_handler_raises_goes_to_stderr_once_and_who_logs_goes_on(
    added: Callable[[logging.Handler], None], error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    added(Raising(error))
    for number in range(3):
        logging.getLogger("aiorecover.delivery").warning("line %d", number)
    told = capsys.readouterr().err
    assert told.count("--- Logging error ---") == 1
    assert type(error).__name__ in told
    assert "Message: 'line %d'" in told


def test_each_kind_of_error_is_told_of(
    added: Callable[[logging.Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    added(handler := Raising(OSError()))
    logging.getLogger("aiorecover.delivery").warning("one")
    handler.error = ValueError()
    logging.getLogger("aiorecover.delivery").warning("another")
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


def test_nothing_goes_to_stderr_where_logging_is_not_to_say_so(
    added: Callable[[logging.Handler], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    added(Raising(OSError()))
    logging.getLogger("aiorecover.delivery").warning("line")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=lambda error: type(error).__name__)
def test_who_ends_the_process_in_a_handler_ends_it(
    added: Callable[[logging.Handler], None], error: BaseException
) -> None:
    added(Raising(error))
    with pytest.raises(type(error)):
        logging.getLogger("aiorecover.delivery").warning("line")


def test_a_stderr_that_is_closed_changes_nothing(
    added: Callable[[logging.Handler], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    added(Raising(OSError()))
    logging.getLogger("aiorecover.delivery").warning("line")


def test_a_filter_of_ours_that_raises_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: logging.LogRecord) -> bool:
        raise LookupError

    logger = logging.getLogger("aiorecover.delivery")
    logger.addFilter(broken)
    try:
        logger.warning("line")
    finally:
        logger.removeFilter(broken)
    assert "LookupError" in capsys.readouterr().err


def test_a_line_of_which_the_record_cannot_be_made_as_the_user_wants_is_seen_all_the_same(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Factories add what a request's context has, and our tasks are in no request."""

    def broken(*_: object, **__: object) -> logging.LogRecord:
        raise LookupError("request_id")

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(broken)
    try:
        logging.getLogger("aiorecover.delivery").warning("line %d", 1, exc_info=ValueError("x"), stack_info=True)
    finally:
        logging.setLogRecordFactory(before)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.message) == ("aiorecover.delivery", "WARNING", "line 1")
    assert record.exc_info is not None
    assert record.stack_info is not None
    assert "LookupError: request_id" in capsys.readouterr().err


def test_a_line_says_where_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("aiorecover.delivery").warning("line")
    (record,) = caplog.records
    assert (record.filename, record.funcName) == ("test_log.py", "test_a_line_says_where_it_was_written")


def test_every_logger_of_ours_is_one_of_these() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    used = {name for source in sources for name in re.findall(r'getLogger\("(aiorecover[\w.]*)"\)', source)}
    assert used == set(module.NAMES)

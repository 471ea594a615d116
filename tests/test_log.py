"""A line of ours never raises into the library, whatever a handler, a filter or a record factory does."""

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
log = logging.getLogger("aiorecover")


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


@pytest.fixture(params=["aiorecover", ""])
def added(request: pytest.FixtureRequest) -> Iterator[Callable[[logging.Handler], None]]:
    """Adds a handler to our logger, or to the root's."""
    logger, before = logging.getLogger(request.param), logging.getLogger(request.param).handlers[:]
    yield logger.addHandler
    logger.handlers[:] = before


@pytest.mark.parametrize(
    "error", [OSError(28, "no space"), Odd(), RecursionError()], ids=lambda error: type(error).__name__
)
def test_an_exception_of_a_log_handler_goes_to_stderr_once_and_the_library_goes_on(
    added: Callable[[logging.Handler], None], error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    added(handler := Raising(error))
    for number in range(3):
        log.warning("line %d", number)
    handler.error = ValueError()
    log.warning("another kind")
    told = capsys.readouterr().err
    assert told.count("--- Logging error ---") == 2
    assert type(error).__name__ in told
    assert "Message: 'line %d'" in told


def test_nothing_goes_to_stderr_where_logging_is_not_to_say_so_or_it_is_closed(
    added: Callable[[logging.Handler], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    added(handler := Raising(OSError()))
    with monkeypatch.context() as patched:
        patched.setattr(logging, "raiseExceptions", False)
        log.warning("line")
    assert capsys.readouterr().err == ""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    handler.error = ValueError()
    log.warning("line")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=lambda error: type(error).__name__)
def test_a_log_handler_may_end_the_process(added: Callable[[logging.Handler], None], error: BaseException) -> None:
    added(Raising(error))
    with pytest.raises(type(error)):
        log.warning("line")


def test_a_line_whose_record_cannot_be_made_as_the_user_wants_is_written_all_the_same(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Factories add what a request's context has, and our tasks are in no request."""

    def broken(*_: object, **__: object) -> logging.LogRecord:
        raise LookupError("request_id")

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(broken)
    try:
        log.warning("line %d", 1, exc_info=ValueError("x"), stack_info=True)
    finally:
        logging.setLogRecordFactory(before)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.message) == ("aiorecover", "WARNING", "line 1")
    assert record.exc_info is not None
    assert record.stack_info is not None
    assert "LookupError: request_id" in capsys.readouterr().err


def test_a_line_says_where_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("line")
    (record,) = caplog.records
    assert (record.filename, record.funcName) == ("test_log.py", "test_a_line_says_where_it_was_written")


def test_every_logger_of_ours_is_guarded() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    used = {name for source in sources for name in re.findall(r'getLogger\("(aiorecover[\w.]*)"\)', source)}
    assert used == set(module.NAMES)

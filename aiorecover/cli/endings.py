"""Print results for machines, and end a command that was stopped or has failed, each with its exit status."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from aiokafka.errors import KafkaError
from rich.console import Console
from typer.core import TyperGroup

from aiorecover.errors import ConfigError, RecoverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "FAILED",
    "Commands",
    "EndedError",
    "Output",
    "ReaderGoneError",
    "StoppedError",
    "errors_only",
    "print_json",
    "reported",
]

FAILED = 1
USAGE = 2
ENDLESS = 10_000  # columns

_BY_SIGNAL = 128  # what shells add to the number of the signal that has ended a process


class EndedError(Exception):
    """The command has ended with this exit status; the last line of the message says in one sentence why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(EndedError):
    """A signal has ended the command; nothing of it runs any more."""

    def __init__(self, number: int, message: str = "stopped") -> None:
        super().__init__(message, _BY_SIGNAL + number)
        self.number = number


class ReaderGoneError(EndedError):
    """The reader of what is printed for people has gone; not a `BrokenPipeError`, which Kafka and Java cause, too."""

    def __init__(self) -> None:
        super().__init__("the reader of the output has gone", _BY_SIGNAL + signal.SIGPIPE)


class Commands(TyperGroup):
    """Runs a command, and ends it with one sentence and no traceback where its user can mend what is wrong.

    Where the reader of stdout has gone, as in ``aiorecover cat wal | head``, it ends without a word, with the status
    of a program that SIGPIPE has ended.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the line names."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (BrokenPipeError, ReaderGoneError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
            raise typer.Exit(_BY_SIGNAL + signal.SIGPIPE) from None
        except KeyboardInterrupt:
            raise typer.Exit(_BY_SIGNAL + signal.SIGINT) from None
        except EndedError as ended:
            _end(ended, ended.status)
        except ConfigError as error:
            _end(error, USAGE)
        except (RecoverError, KafkaError, OSError) as error:
            _end(error, FAILED)


def _end(error: Exception, status: int) -> NoReturn:
    sys.stderr.write(f"{error}\n")
    raise typer.Exit(status) from None


class Output(Console):
    """Standard output for people: colours, and lines as long as it is wide, where it is a terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        if not self.is_terminal and "COLUMNS" not in os.environ and "width" not in options:
            self.width = ENDLESS

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line as it is, however long it is."""
        self.print(line, markup=False, soft_wrap=True, style=style)

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to `Commands`: rich would end the process with status 1."""
        raise ReaderGoneError


def print_json(found: Any) -> None:
    """Print it as one line, at once."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


@contextmanager
def errors_only() -> Iterator[None]:
    """Let the log of the library warn of nothing meanwhile; it names errors still, damage for one."""
    log = logging.getLogger("aiorecover")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def reported(as_json: bool, otherwise: str = "") -> Iterator[Callable[[dict[str, Any], str], None]]:
    """Yield a function that reports what was done, as data and as text; as JSON it is one list, also after an error.

    ``otherwise``: the text where nothing was done.
    """
    done: list[dict[str, Any]] = []

    def report(about: dict[str, Any], line: str) -> None:
        done.append(about)
        if not as_json:
            sys.stdout.write(line + "\n")

    try:
        yield report
        if otherwise and not done and not as_json:
            sys.stdout.write(otherwise + "\n")
    finally:
        if as_json:
            print_json(done)

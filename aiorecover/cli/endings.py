"""Print results for machines, and end a command that was stopped or has failed."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from aiokafka.errors import KafkaError

from aiorecover.errors import ConfigError, RecoverError, WalFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "USAGE",
    "EndedError",
    "StoppedError",
    "one_line",
    "print_json",
    "reported",
    "spark_ends",
]

FAILED = 1
USAGE = 2
INTERRUPTED = 130

_BY_SIGNAL = 128  # what shells add to the number of the signal that has ended a process


class EndedError(Exception):
    """It has ended with this exit status; the last line of the message says in one sentence why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(EndedError):
    """A signal has ended it; nothing of it runs any more."""

    def __init__(self, number: int, message: str = "stopped") -> None:
        super().__init__(message, _BY_SIGNAL + number)
        self.number = number


def print_json(found: Any) -> None:
    """Print it as one line, at once."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


@contextmanager
def reported(as_json: bool) -> Iterator[Callable[[dict[str, Any], str], None]]:
    """Give a function that reports what was done, as data and as text; as JSON it is one list, also after an error."""
    done: list[dict[str, Any]] = []

    def report(about: dict[str, Any], line: str) -> None:
        done.append(about)
        if not as_json:
            sys.stdout.write(line + "\n")

    try:
        yield report
    finally:
        if as_json:
            print_json(done)


@contextmanager
def one_line() -> Iterator[None]:
    """End the command with one sentence, no traceback, where something is wrong that its user can mend."""
    try:
        yield
    except (ConfigError, WalFormatError) as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(USAGE) from None
    except (RecoverError, KafkaError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # of `aiorecover cat wal | head`
            raise
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def spark_ends() -> Iterator[None]:
    """Likewise, where Spark may answer."""
    try:
        yield
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(USAGE) from None
    except EndedError as ended:
        sys.stderr.write(f"{ended}\n")
        raise typer.Exit(ended.status) from None
    except KeyboardInterrupt:  # before there was anything to stop
        raise typer.Exit(INTERRUPTED) from None

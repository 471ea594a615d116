"""A command's work in a Spark session; what goes wrong ends it with one sentence."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from rich.console import Console

from aiorecover.cli.endings import EndedError
from aiorecover.cli.stopping import stoppable
from aiorecover.spark.failures import failure_of
from aiorecover.spark.session import cause_said, clear_errors, py4j_silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["STARTS", "with_spark"]

STARTS = "Spark starts; what it lacks is fetched, once"

_JAVA_ENDS_WITHIN_S = 5.0  # its connections close before it has ended

_T = TypeVar("_T")


def with_spark(
    start: Callable[[], SparkSession], work: Callable[[SparkSession], _T], *, failed: int, doing: str | None = None
) -> _T:
    """Start a session, do the work with it, and stop it; ``failed`` is the exit status where Spark fails at it.

    A terminal shows that Spark starts, and then ``doing``; None: the work reports how far it is.

    Raises:
        RecordsGoneError: records that were to be read are not in Kafka any more.
        ConfigError: an option, the installation, Kafka or a directory needs mending; the message says which.
        EndedError: Spark has failed for another reason.
        StoppedError: a signal came first; nothing runs any more, Java neither.

    """
    sessions: list[SparkSession] = []
    ending = threading.Lock()  # a query that is stopped is waited for no longer, and still needs its session

    def do() -> _T:
        with Console(stderr=True).status(STARTS) as status:
            session = start()
            sessions.append(session)
            if doing is None:
                status.stop()
            else:
                status.update(doing)
            try:
                return _clearly(lambda: work(session), failed)
            finally:
                with ending, contextlib.suppress(Py4JError, OSError):  # where Java is gone, there is nothing to stop
                    _stop(session)

    def stop() -> None:
        logging.disable()  # what is cut off may say so until this process ends
        warnings.simplefilter("ignore")  # pyspark warns of a Java that it has not ended itself
        with ending:
            for session in sessions:
                session.sparkContext.setLogLevel("OFF")  # what is torn down says so in hundreds of lines
                _stop(session)

    with py4j_silent():
        return stoppable(do, stop)


def _clearly(work: Callable[[], _T], failed: int) -> _T:
    try:
        with clear_errors():
            return work()
    except (PySparkException, Py4JJavaError) as error:
        raise EndedError(failure_of(str(error)), failed) from error
    except (Py4JError, ConnectionError) as error:  # Java says nothing any more
        message = (
            "Spark's Java is gone, killed or by itself: give it more memory if it ran out of it, as --conf "
            "spark.driver.memory=4g does; --verbose shows what it says"
        )
        raise EndedError(f"{message} error={cause_said()!r} java_status={_java_status()}", failed) from error


def _java_status() -> int | None:
    """Return Java's exit status; None where it is not known."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - pyspark offers no other way to the process
    process: subprocess.Popen[bytes] | None = gateway.proc  # none where another program has started Java
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_JAVA_ENDS_WITHIN_S)
    return process.returncode


def _stop(session: SparkSession) -> None:
    """Stop the session at once: the next start begins the batch under way again."""
    for query in session.streams.active:
        query.stop()
    session.stop()

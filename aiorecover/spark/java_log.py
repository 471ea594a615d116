"""What Spark's Java, and py4j between it and Python, write to stderr: errors only, a line each, without stacks.

An error that ends the work is raised with its whole history, so what executors, the scheduler, the query and py4j write
of it, each with its stack, tells nothing new.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["py4j_silent", "quieten"]

_DEFAULTS = "log4j2-defaults"  # what Spark brings for whoever has no settings of his own
_APPENDER = "aiorecover"
_PATTERN = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%ex{0}%n"  # as Spark's own, but for the stack


def quieten(session: SparkSession) -> None:
    """Begin with it; where somebody has set up Java's log, only less is written."""
    session.sparkContext.setLogLevel("ERROR")
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - pyspark offers no other way to Java's log
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)  # noqa: FBT003 - as Java calls it: whose it is
    configuration = context.getConfiguration()
    if _DEFAULTS not in str(configuration.getConfigurationSource().getLocation()):
        return
    appender = _appender(log4j.core, configuration)
    appender.start()
    root = configuration.getRootLogger()
    for name in list(root.getAppenders()):
        root.removeAppender(name)
    root.addAppender(appender, None, None)
    context.updateLoggers()


@contextmanager
def py4j_silent() -> Iterator[None]:
    """Of py4j nothing is written: not what it logs under its name, nor what it logs under none."""
    root, named = logging.getLogger(), logging.getLogger("py4j")
    before, named.propagate = named.propagate, False
    root.addFilter(_nothing)  # on what is logged there itself
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        named.propagate = before


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def _appender(core: Any, configuration: Any) -> Any:
    console = core.appender.ConsoleAppender
    layout = core.layout.PatternLayout.newBuilder().withPattern(_PATTERN).withConfiguration(configuration).build()
    builder = console.newBuilder().setName(_APPENDER).setTarget(console.Target.SYSTEM_ERR).setLayout(layout)
    return builder.build()

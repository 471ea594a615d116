"""Options that several commands have, and those of a producer on the command line."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aiorecover import RecoverableProducer
from aiorecover.errors import ConfigError
from aiorecover.ring.inspect import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CONF",
    "JSON",
    "OPTION",
    "PATH",
    "SERVERS",
    "TOPIC",
    "VERBOSE",
    "options_of",
    "pairs",
    "producer_of",
    "stored_options",
]

PATH = Annotated[pathlib.Path, typer.Argument(help="A wal_dir, or one instance directory in it.")]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TOPIC = Annotated[list[str] | None, typer.Option(help="Only of this topic; may be given several times.")]

SERVERS = Annotated[str | None, typer.Option(help="Kafka, host:port,... Default: AIORECOVER_BOOTSTRAP_SERVERS.")]
OPTION = Annotated[
    list[str] | None, typer.Option(help="An option of the producer, name=value; may be given several times.")
]

CONF = Annotated[list[str] | None, typer.Option(help="A setting of Spark, name=value.")]
VERBOSE = Annotated[bool, typer.Option("--verbose", help="Show what Spark says.")]

STOP_MS = 2000


def options_of(
    wal_dir: pathlib.Path, bootstrap_servers: str | None, options: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Return the options of a producer: ``name=value`` pairs, variables (``AIORECOVER_*``), ``.env``, aiorecover.toml.

    Raises:
        ConfigError: one is missing or wrong.

    """
    from aiorecover.integrations.settings import ProducerSettings  # noqa: PLC0415 - slow to import, and optional

    given: dict[str, Any] = {**pairs(options), **more, "wal_dir": wal_dir}
    if bootstrap_servers is not None:
        given["bootstrap_servers"] = bootstrap_servers
    return ProducerSettings(**given).options()


def producer_of(
    path: pathlib.Path, bootstrap_servers: str | None, options: Sequence[str], **more: Any
) -> RecoverableProducer:
    """Return a producer for the instance directory ``path`` alone, which remembers its name and its guarantee.

    Raises:
        ConfigError: an option is missing or wrong.
        WalError: the directory cannot be read.

    """
    settings = options_of(path.parent, bootstrap_servers, options, instance=path.name)
    return RecoverableProducer(**settings | stored_options(path) | {"stop_timeout_ms": STOP_MS, **more})


def stored_options(path: pathlib.Path) -> dict[str, Any]:
    """Return the options that open the instance directory ``path``, and no other one.

    Raises:
        WalError: the directory cannot be read.

    """
    given: dict[str, Any] = {"wal_dir": path.parent, "instance": path.name, "adoption_grace_ms": None}
    stored = read_checkpoint(path)
    return given if stored is None else given | {"name": stored.name, "guarantee": stored.guarantee}


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """``["a=1"]`` as ``{"a": "1"}``.

    Raises:
        ConfigError: there is one without a name or without a ``=``.

    """
    wrong = [text for text in texts if "=" not in text or text.startswith("=")]
    if wrong:
        raise ConfigError(f"such an option is name=value: {wrong=}")
    return dict(text.split("=", 1) for text in texts)

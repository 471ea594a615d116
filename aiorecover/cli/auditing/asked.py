"""The options of ``aiorecover audit``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    engine: str | None
    bootstrap_servers: str | None
    topics: Sequence[str]
    table: str | None
    format: str | None
    last: Sequence[str]
    manifests: str | None
    from_first: bool
    order: bool
    limit: int
    html: pathlib.Path | None
    master: str | None
    verbose: bool
    settings: Sequence[str]
    kafka_options: Sequence[str]

    @property
    def for_spark(self) -> list[str]:
        """The names of the given options that only Spark can serve."""
        asked = {"--table": self.table, "--format": self.format, "--master": self.master}
        return [name for name, value in (asked | {"--conf": self.settings}).items() if value]

    def shown(self) -> dict[str, str]:
        """Return the options for people, and the time; without Kafka's options, one of which may be a password."""
        asked = {
            "topics": ", ".join(self.topics),
            "table": self.table,
            "Kafka": self.bootstrap_servers,
            "manifests": self.manifests,
            "last ids": ", ".join(self.last),
            "options": ", ".join(filter(None, ["--from-first" * self.from_first, "--no-order" * (not self.order)])),
            "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC by aiorecover {version('aiorecover')}",
        }
        return {name: value for name, value in asked.items() if value}

"""The table of metrics: what `prometheus` and `opentelemetry` make of the fields of `Statistics`.

One dotted name serves both: Prometheus gets it with underscores, the unit and ``_total``, as an OpenTelemetry exporter
would translate it, so that the dashboard and the alerts in examples/ops/ fit either way.
"""

import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aiorecover import ClosedError, Statistics

__all__ = ["STATES", "TABLE", "WAL_PATH", "Kind", "Metric", "Watchable", "read"]

WAL_PATH: Final = "wal_path"  # the label that distinguishes producers: workers of one service
STATES: Final = ("connecting", "connected", "halted", "failed", "interrupted", "stopping")  # with statistics to show
_SUFFIX: Final = {"By": "_bytes", "s": "_seconds"}


class Watchable(Protocol):
    """A producer, that of `aiorecover` or of `aiorecover.sync`."""

    @property
    def wal_path(self) -> Path | None:
        """Its directory; None before it starts."""

    def statistics(self) -> Statistics:
        """Return what the metrics show."""


class Kind(Enum):
    """A counter never falls while its producer lives, a gauge does."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """A metric.

    Attributes:
        field: the field of `Statistics`.
        name: with dots, as OpenTelemetry has it.
        unit: in UCUM; "" for a number without a unit, 0 or 1, say.
        label: where the field is a word: the label that it becomes, of a metric that is 1.

    """

    field: str
    name: str
    kind: Kind
    unit: str
    help: str
    label: str | None = None

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus: underscores, the unit, and ``_total`` for a counter."""
        total = "_total" if self.kind is Kind.COUNTER else ""
        return self.name.replace(".", "_") + _SUFFIX.get(self.unit, "") + total

    def values(self, statistics: Statistics) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and value; a state has 0 for each of the others."""
        value = getattr(statistics, self.field)
        if self.label is None:
            yield {}, float(value or 0)
        elif self.field == "state":
            yield from (({self.label: state}, float(state == value)) for state in STATES)
        else:
            yield {self.label: value or ""}, 1.0


_C, _G = Kind.COUNTER, Kind.GAUGE
TABLE: Final = (
    Metric("state", "aiorecover.state", _G, "", "1 for the state that the producer is in", "state"),
    Metric("accepted", "aiorecover.records.accepted", _C, "{record}", "records that publish took"),
    Metric("recovered", "aiorecover.records.recovered", _C, "{record}", "records of earlier starts, found waiting"),
    Metric("delivered", "aiorecover.records.delivered", _C, "{record}", "records that are in Kafka"),
    Metric("dead_lettered", "aiorecover.records.dead_lettered", _C, "{record}", "records that became dead letters"),
    Metric("damaged", "aiorecover.records.damaged", _C, "{record}", "records that could not be read any more"),
    Metric("pending", "aiorecover.records.pending", _G, "{record}", "records that wait for Kafka"),
    Metric("recovering", "aiorecover.recovering", _G, "", "1 while what earlier starts left is still being read"),
    Metric("dead_letters", "aiorecover.dead_letters", _G, "{record}", "dead letters in the ring now"),
    Metric("oldest_age_seconds", "aiorecover.oldest_record.age", _G, "s", "age of the oldest record that waits, or 0"),
    Metric("epoch", "aiorecover.epoch", _G, "", "which start of its directory it is"),
    Metric("bytes_used", "aiorecover.ring.used", _G, "By", "bytes of the ring that belong to partitions"),
    Metric("bytes_allocated", "aiorecover.ring.allocated", _G, "By", "with the free ones that keep their disk space"),
    Metric("wal_max_bytes", "aiorecover.ring.limit", _G, "By", "wal_max_bytes"),
    Metric("wal_min_free_bytes", "aiorecover.volume.reserve", _G, "By", "what stays free on the volume"),
    Metric("full", "aiorecover.ring.full", _G, "", "1 while partitions get no more room"),
    Metric("flushes", "aiorecover.flushes", _C, "{flush}", "flushes that completed"),
    Metric("flush_failed", "aiorecover.flush.failed", _G, "", "1 once the disk failed: nothing more is accepted"),
    Metric("requests", "aiorecover.requests", _C, "{request}", "requests to brokers, with records"),
    Metric("errors", "aiorecover.request.errors", _C, "{error}", "answers that were no acknowledgement"),
    Metric("callback_errors", "aiorecover.callback.errors", _C, "{error}", "exceptions of on_delivery"),
    Metric("lanes", "aiorecover.lanes", _G, "{partition}", "partitions that records were published to"),
    Metric("lanes_in_trouble", "aiorecover.lanes.in_trouble", _G, "{partition}", "partitions that do not get through"),
    Metric("lanes_halted", "aiorecover.lanes.halted", _G, "{partition}", "partitions that wait for the next start"),
    Metric("directories_adopted", "aiorecover.adopted.directories", _C, "{directory}", "orphans that were delivered"),
    Metric("records_adopted", "aiorecover.adopted.records", _C, "{record}", "records of orphans that were delivered"),
    Metric("cluster_id", "aiorecover.info", _G, "", "1, with the id of the cluster", "cluster_id"),
)


def read(producers: "weakref.WeakSet[Watchable]") -> list[tuple[dict[str, str], Statistics]]:
    """Return labels and statistics of the producers that run."""
    found = []
    for producer in list(producers):
        try:
            statistics = producer.statistics()
        except ClosedError:  # not started yet, or its parent's
            continue
        if statistics.state != "stopped":
            found.append(({WAL_PATH: str(producer.wal_path)}, statistics))
    return found

"""The audit with Spark: of topics, of tables, and of both."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aiorecover import spark as downstream
from aiorecover.audit.verdicts import VERDICTS
from aiorecover.cli.endings import StoppedError
from aiorecover.cli.options import pairs
from aiorecover.cli.spark_work import with_spark
from aiorecover.errors import ConfigError
from aiorecover.spark.admin import convertible, ends_of, held_ids, held_offsets
from aiorecover.spark.failures import RecordsGoneError
from aiorecover.spark.manifests import BEHIND, NOT_IN_TABLE, of_table
from aiorecover.spark.over_time import check_timestamps
from aiorecover.spark.session import start_session
from aiorecover.spark.stores import check_format, read_target
from aiorecover.spark.topics import client_options, source_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from aiorecover.cli.auditing.asked import Options
    from aiorecover.spark import Manifests

__all__ = ["run_spark"]

_STOPPED = "stopped: nothing is said of the records, and nothing was changed; start the audit again"
_DELETED_MEANWHILE = "records that were to be read are not in Kafka any more: start the audit again"
_UNREADABLE = "audit the topics with --engine local, which reads it, or delete it with kafka-delete-records.sh"
_CANNOT_RUN = 2


def run_spark(options: Options, known_last: dict[tuple[str, int], int]) -> dict[str, Any]:
    """Return what `aiorecover.audit.local.audit` does; with topics and a table also ``compared``: what the table lacks.

    Raises:
        ConfigError: an option, the installation, Kafka or the table needs mending; the message says which.
        EndedError: Spark has failed for another reason.
        StoppedError: a signal has ended it.

    """
    check_format(options.format)
    topics = _reads_topics(options)
    if topics:  # refused here, before Spark fetches and starts anything
        source_options(options.topics, options.bootstrap_servers or "", pairs(options.kafka_options))
    settings = pairs(options.settings)
    try:
        return with_spark(
            lambda: start_session(
                "aiorecover audit",
                options.master or "local[*]",
                settings,
                kafka=topics or options.manifests is not None,
                chosen=options.format,
                paths=[] if options.table is None else [options.table],
                verbose=options.verbose,
            ),
            lambda spark: _convertible(spark, options, known_last),
            failed=_CANNOT_RUN,
            doing="Spark reads",
        )
    except StoppedError as stopped:
        raise StoppedError(stopped.number, _STOPPED) from None
    except RecordsGoneError as error:
        raise ConfigError(f"{_DELETED_MEANWHILE} {error.where}") from error


def _convertible(spark: SparkSession, options: Options, known_last: dict[tuple[str, int], int]) -> dict[str, Any]:
    if not _reads_topics(options):
        return _found(spark, options, known_last)
    source = source_options(options.topics, options.bootstrap_servers or "", pairs(options.kafka_options))
    with convertible(spark, source, _UNREADABLE):
        return _found(spark, options, known_last)


def _found(spark: SparkSession, options: Options, known_last: dict[tuple[str, int], int]) -> dict[str, Any]:
    topics, more = _reads_topics(options), pairs(options.kafka_options)
    manifests = _manifests_of(spark, options)  # before the topics: what is delivered meanwhile is not settled then
    read = [*_topics_of(spark, options), *_table_of(spark, options)]
    records = read[0]
    if options.html is not None:
        check_timestamps(records)
    ends = ends_of(spark, source_options(options.topics, options.bootstrap_servers or "", more)) if topics else {}
    held = held_ids(spark, options.topics, options.bootstrap_servers or "", more, ends) if topics else None
    with downstream.audit(
        records,
        known_last=known_last,
        manifests=manifests,
        from_first=options.from_first,
        order=options.order,
        held=held,
    ) as audit:
        totals = _rows(audit.totals)[0]
        if totals["records"] and not totals["epochs"]:
            raise ConfigError(
                "no record has a record id: name topics that aiorecover publishes to, or a table that they were landed "
                f"in records={totals['records']}"
            )
        found = {
            "totals": totals,
            "epochs": _rows(_worst(audit.producers, "missing", options.limit)),
            "missing": _rows(_worst(audit.missing, "count", options.limit)),
            # Not read again for nothing.
            "repeated": _rows(_worst(audit.repeated, "repeated", options.limit)) if totals["repeated"] else [],
            "out_of_order": _rows(_worst(audit.out_of_order, "count", options.limit)),
            "conflicts": [],
        }
        totals |= {"conflicts": 0, "held_offsets": held_offsets(ends), "behind_open_transaction": 0}
        if totals["repeated"]:
            with _persisted(audit.conflicts) as conflicts:
                totals["conflicts"] = _sum(conflicts)
                found["conflicts"] = _rows(_worst(conflicts, "count", options.limit))
        if held is not None and audit.verdicts is not None:
            totals["behind_open_transaction"] = _sum(audit.verdicts.where(audit.verdicts["verdict"] == BEHIND))
        if audit.verdicts is not None and manifests is not None:
            verdicts, kinds = audit.verdicts, list(VERDICTS)
            if not topics:
                verdicts, kinds = of_table(verdicts), [NOT_IN_TABLE, *kinds]
            found["manifests"] = _judged(manifests, verdicts, kinds, options.limit)
        if options.html is not None:
            over_time = downstream.timeline(records, audit.missing)
            found["timeline"] = {"width_s": over_time.width_s, "moments": _rows(over_time.moments)}
    if len(read) > 1:
        with downstream.compare(*read) as compared:
            absent = _rows(_worst(compared.absent, "count", options.limit))
            found["compared"] = {"totals": _rows(compared.totals)[0], "absent": absent}
    return found


def _judged(manifests: Manifests, verdicts: DataFrame, kinds: Sequence[str], limit: int) -> dict[str, Any]:
    """Return counts and up to ``limit`` ranges of each verdict, and how many records are no manifests."""
    with _persisted(verdicts) as judged:
        counts: dict[str, int] = dict(map(tuple, judged.groupBy("verdict").sum("count").collect()))
        totals = {verdict: counts.get(verdict, 0) for verdict in kinds}
        ranges = [
            row
            for verdict in kinds
            if totals[verdict]
            for row in _rows(_worst(judged.where(judged["verdict"] == verdict), "count", limit))
        ]
    return {"totals": totals, "ranges": ranges, "unreadable": _unreadable(manifests)}


def _unreadable(manifests: Manifests) -> int:
    return int(_rows(manifests.unreadable)[0]["count"])


def _topics_of(spark: SparkSession, options: Options) -> Iterator[DataFrame]:
    if _reads_topics(options):
        servers, more = options.bootstrap_servers or "", pairs(options.kafka_options)
        yield downstream.read_topics(spark, options.topics, servers, more)


def _reads_topics(options: Options) -> bool:
    """Whether topics are read; servers without topics serve the manifests, if there are any."""
    return bool(options.topics) or (options.bootstrap_servers is not None and options.manifests is None)


def _manifests_of(spark: SparkSession, options: Options) -> Manifests | None:
    if options.manifests is None:
        return None
    # Options that say where to begin and end are meant for the topics.
    servers, more = options.bootstrap_servers or "", client_options(pairs(options.kafka_options))
    manifests = downstream.read_manifests(downstream.read_topics(spark, [options.manifests], servers, more))
    count = manifests.epochs.count()  # which reads all of it, as a look for one would not
    if not count and _unreadable(manifests):
        raise ConfigError(
            "no record of this topic is a manifest of producers: name for --manifests what they name as audit_topic "
            f"manifests={options.manifests}"
        )
    return manifests


def _table_of(spark: SparkSession, options: Options) -> Iterator[DataFrame]:
    if options.table is not None:
        yield read_target(spark, options.table)


def _worst(found: DataFrame, by: str, limit: int) -> DataFrame:
    rest = [name for name in ("producer_id", "epoch", "first") if name in found.columns]
    return found.orderBy(found[by].desc(), *rest).limit(limit)


def _sum(ranges: DataFrame) -> int:
    return int(ranges.agg({"count": "sum"}).collect()[0][0] or 0)


@contextmanager
def _persisted(df: DataFrame) -> Iterator[DataFrame]:
    """Keep what is used several times."""
    kept = df.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _rows(few: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in few.collect()]

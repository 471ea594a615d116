"""What ``aiorecover audit`` does and shows: totals, and the worst epochs and ranges, few lines of each."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from aiorecover import spark as downstream
from aiorecover.cli.audit_page import (
    WRONG,
    fewer_without_id,
    left_out,
    lost,
    not_known,
    not_landed,
    page,
    sequences,
    without_id,
)
from aiorecover.cli.endings import StoppedError
from aiorecover.cli.pairs import pairs
from aiorecover.cli.spark_work import with_spark
from aiorecover.errors import ConfigError
from aiorecover.record_id import parse_record_id
from aiorecover.spark.gone import RecordsGoneError
from aiorecover.spark.leftovers import parse_manifests
from aiorecover.spark.manifests import NOT_IN_TABLE, VERDICTS, of_table
from aiorecover.spark.over_time import check_timestamps
from aiorecover.spark.session import start_session
from aiorecover.spark.targets import read_target
from aiorecover.spark.topics import client_options, source_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from aiorecover.spark import Manifests

__all__ = ["Options", "draw", "lacks", "run", "show"]

_COUNTS = {
    "expected": "expected",
    "found": "found",
    "missing": "missing",
    "repeated": "repeated",
    "out_of_order": "disorder",
}
_STOPPED = "stopped: nothing is said of the records, and nothing was changed; start the audit again"
_DELETED_MEANWHILE = "records that were to be read are not in Kafka any more: start the audit again"
CANNOT_RUN = 2
_KINDS = "missing", "repeated", "out_of_order"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    bootstrap_servers: str | None
    topics: Sequence[str]
    table: str | None
    last: Sequence[str]
    manifests: str | None
    from_first: bool
    order: bool
    sink_manifests: str | None
    limit: int
    html: pathlib.Path | None
    master: str | None
    settings: Sequence[str]
    kafka_options: Sequence[str]


def run(options: Options) -> dict[str, Any]:
    """The audit's totals, and up to ``limit`` of its epochs and of each kind of its ranges, the worst first.

    ``more`` names the lists that the limit has cut. Where topics and a table are named, the topics are audited, and
    ``compared`` says what of them the table lacks. With ``html`` there is a ``timeline``, for `draw`.

    Raises:
        ConfigError: an option, the installation, Kafka or the table needs mending; the message says which.
        EndedError: Spark has failed for another reason.
        StoppedError: a signal has ended it.

    """
    known_last = _known_last(options.last)
    if options.table is None and options.bootstrap_servers is None and not options.topics:
        raise ConfigError("say what to read: --bootstrap-servers and --topic, or --table, or all of them to compare")
    if options.html is not None:
        _check_page(options.html)
    told, topics = options.manifests is not None, _reads_topics(options)
    if told and not options.bootstrap_servers:
        raise ConfigError(f"name Kafka's servers for --manifests, too: {options.bootstrap_servers=}")
    if options.sink_manifests is not None and not topics:
        raise ConfigError("--sink-manifests is a topic: say where, with --bootstrap-servers and --topic")
    if topics:  # refused here, before Spark fetches and starts anything
        source_options(options.topics, options.bootstrap_servers or "", pairs(options.kafka_options))
    settings = pairs(options.settings)
    try:
        found = with_spark(
            lambda: start_session("aiorecover audit", options.master, settings, kafka=topics or told),
            lambda spark: _found(spark, options, known_last),
            failed=CANNOT_RUN,
        )
    except StoppedError as stopped:
        raise StoppedError(stopped.number, _STOPPED) from None
    except RecordsGoneError as error:
        raise ConfigError(f"{_DELETED_MEANWHILE} {error.gone.where}") from error
    return found


def draw(html: pathlib.Path, found: dict[str, Any]) -> None:
    """Write the page. It comes last: what was found is told by then, whatever becomes of the page.

    Raises:
        ConfigError: it cannot be written.

    """
    try:
        html.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise _unwritten(html, error) from None


def _check_page(html: pathlib.Path) -> None:
    """Before the work, which may take hours. What was not there is not there behind it."""
    try:
        if not html.parent.is_dir():
            raise ConfigError(f"the directory of --html is not there: make it html={html}")
        was_there = html.exists() or html.is_symlink()
        with html.open("ab"):
            pass
        if not was_there:
            html.unlink()
    except OSError as error:
        raise _unwritten(html, error) from None


def _unwritten(html: pathlib.Path, error: OSError) -> ConfigError:
    return ConfigError(
        "the page cannot be written: name a file for --html that you may write, where there is room "
        f"html={html} error={error.strerror}"
    )


def _found(spark: SparkSession, options: Options, known_last: dict[tuple[str, int], int]) -> dict[str, Any]:
    told = _manifests_of(spark, options)  # before the topics: what is delivered meanwhile is not settled then
    read = [*_topics_of(spark, options), *_table_of(spark, options)]
    records, sinks = read[0], _sink_manifests_of(spark, options)
    if options.html is not None:
        check_timestamps(records)
    with downstream.audit(
        records,
        known_last=known_last,
        manifests=told,
        from_first=options.from_first,
        sink_manifests=sinks,
        order=options.order,
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
        }
        if audit.verdicts is not None and _reads_topics(options):
            found["manifests"] = _judged(told, audit.verdicts, VERDICTS, options.limit)
        elif audit.verdicts is not None:
            found["manifests"] = _judged(told, of_table(audit.verdicts), (NOT_IN_TABLE, *VERDICTS), options.limit)
        if options.html is not None:
            counting = records if sinks is None else downstream.without_leftovers(records, sinks)
            over_time = downstream.timeline(counting, audit.missing)
            found["timeline"] = {"width_s": over_time.width_s, "moments": _rows(over_time.moments)}
    if len(read) > 1:
        with downstream.compare(*read, sink_manifests=sinks) as compared:
            absent = _rows(_worst(compared.absent, "count", options.limit))
            found["compared"] = {"totals": _rows(compared.totals)[0], "absent": absent}
    found["more"] = list(_cut(found))
    return found


def _cut(found: dict[str, Any]) -> Iterator[str]:
    """The names of the lists that end at ``limit`` and not with their last one."""
    totals = found["totals"]
    if len(found["epochs"]) < totals["epochs"]:
        yield "epochs"
    yield from (kind for kind in _KINDS if _told(found[kind]) < (totals[kind] or 0))
    if "manifests" in found and _told(found["manifests"]["ranges"]) < sum(found["manifests"]["totals"].values()):
        yield "manifests"
    if "compared" in found and _told(found["compared"]["absent"]) < found["compared"]["totals"]["absent"]:
        yield "compared"


def _judged(told: Manifests | None, verdicts: DataFrame, kinds: Sequence[str], limit: int) -> dict[str, Any]:
    """How many have each verdict, up to ``limit`` ranges of each, and how many records are no manifests."""
    judged = verdicts.persist()
    try:
        counts: dict[str, int] = dict(map(tuple, judged.groupBy("verdict").sum("count").collect()))
        totals = {verdict: counts.get(verdict, 0) for verdict in kinds}
        ranges = [
            row
            for verdict in kinds
            if totals[verdict]
            for row in _rows(_worst(judged.where(judged["verdict"] == verdict), "count", limit))
        ]
    finally:
        judged.unpersist()
    return {"totals": totals, "ranges": ranges, "unreadable": _unreadable(told)}


def _unreadable(told: Manifests | None) -> int:
    return 0 if told is None else int(_rows(told.unreadable)[0]["count"])


def lacks(found: dict[str, Any]) -> bool:
    """Whether anything is lost, as far as is told, or else missing, or not in the table."""
    absent = found["compared"]["totals"]["absent"] if "compared" in found else 0
    if "manifests" in found:
        return bool(lost(found["manifests"]["totals"]) or absent)
    return bool(found["totals"]["missing"] or absent)


def _known_last(ids: Sequence[str]) -> dict[tuple[str, int], int]:
    """Of several ids of an epoch the highest: all of them were published."""
    known: dict[tuple[str, int], int] = {}
    for text in ids:
        found = parse_record_id(text)
        if found is None:
            raise ConfigError(f"--last takes a record id, producer id/epoch/sequence: {text=}")
        producer_id, epoch, sequence = found
        known[producer_id, epoch] = max(sequence, known.get((producer_id, epoch), 0))
    return known


def _topics_of(spark: SparkSession, options: Options) -> Iterator[DataFrame]:
    if _reads_topics(options):
        servers, more = options.bootstrap_servers or "", pairs(options.kafka_options)
        yield downstream.read_topics(spark, options.topics, servers, more)


def _reads_topics(options: Options) -> bool:
    """Servers alone are for the manifests, if there are any."""
    return bool(options.topics) or (options.bootstrap_servers is not None and options.manifests is None)


def _manifests_of(spark: SparkSession, options: Options) -> Manifests | None:
    if options.manifests is None:
        return None
    # Where to begin and end is said of the topics.
    servers, more = options.bootstrap_servers or "", client_options(pairs(options.kafka_options))
    told = downstream.read_manifests(downstream.read_topics(spark, [options.manifests], servers, more))
    count = told.epochs.count()  # which reads all of it, as a look for one would not
    if not count and _unreadable(told):
        raise ConfigError(
            "no record of this topic is a manifest of producers: name for --manifests what they name as audit_topic "
            f"manifests={options.manifests}"
        )
    return told


def _sink_manifests_of(spark: SparkSession, options: Options) -> DataFrame | None:
    if options.sink_manifests is None:
        return None
    servers, more = options.bootstrap_servers or "", pairs(options.kafka_options)
    manifests = downstream.read_topics(spark, [options.sink_manifests], servers, more).persist()
    # Read before the records are: what these manifests name is in Kafka by now.
    if manifests.count() and parse_manifests(manifests).isEmpty():
        raise ConfigError(
            "no record of this topic is a manifest of Spark's jobs: name for --sink-manifests what they name as "
            f"manifest_topic sink_manifests={options.sink_manifests}"
        )
    return manifests


def _table_of(spark: SparkSession, options: Options) -> Iterator[DataFrame]:
    if options.table is not None:
        yield read_target(spark, options.table)


def _worst(found: DataFrame, by: str, limit: int) -> DataFrame:
    rest = [name for name in ("producer_id", "epoch", "first") if name in found.columns]
    return found.orderBy(found[by].desc(), *rest).limit(limit)


def _rows(few: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in few.collect()]


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the epochs as a table of at most 80 columns, the missing ranges as lines, and the totals."""
    totals, epochs = found["totals"], found["epochs"]
    if epochs:
        console.print(_table(epochs))
    if "manifests" in found:
        _show_judged(console, found["manifests"])
    else:
        _print_ranges(console, "missing", found["missing"], "red")
    _print_ranges(console, "repeated", found["repeated"])
    _print_ranges(console, "out of order", found["out_of_order"])
    if _more_of_what_is_printed(found):
        console.print("there is more; these are the worst (--limit shows more)", markup=False, soft_wrap=True)
    disorder = "order unknown" if totals["out_of_order"] is None else f"{totals['out_of_order']:,} out of order"
    verdict = (
        f"{totals['records']:,} records, {totals['without_id']:,} without an id: {totals['found']:,} of "
        f"{totals['expected']:,} found, {totals['missing']:,} missing, {totals['repeated']:,} repeated, {disorder}"
    )
    wrong = lost(found["manifests"]["totals"]) if "manifests" in found else totals["missing"]
    console.print(verdict, style="red" if wrong else "green", markup=False, soft_wrap=True)
    for said in filter(None, (without_id(totals), left_out(totals))):
        console.print(said, markup=False, soft_wrap=True)
    if "manifests" in found:
        _show_verdicts(console, found["manifests"])
    for said in not_known(totals):
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    if "compared" in found:
        _show_compared(console, found["compared"])


def _more_of_what_is_printed(found: dict[str, Any]) -> bool:
    """Where producers have told, what they say of the missing ranges is printed, and not these."""
    unprinted = {"missing"} if "manifests" in found else set[str]()
    return bool(set(found["more"]) - unprinted)


def _told(ranges: list[dict[str, Any]]) -> int:
    return sum(map(_count, ranges))


def _count(one: dict[str, Any]) -> int:
    """Records of a range; of what is repeated, the repeats."""
    count: int = one.get("repeated", one["count"])
    return count


def _show_judged(console: Console, judged: dict[str, Any]) -> None:
    for one in judged["ranges"]:
        said = " ".join(filter(None, [one["verdict"].replace("_", " "), one["why"], "tail" if one["tail"] else ""]))
        line = f"{said}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {one['count']:,}"
        style = "red" if one["verdict"] in WRONG else None
        console.print(line, style=style, markup=False, soft_wrap=True)


def _show_verdicts(console: Console, judged: dict[str, Any]) -> None:
    said = ", ".join(f"{count:,} {verdict.replace('_', ' ')}" for verdict, count in judged["totals"].items())
    unreadable = f"; {judged['unreadable']:,} records are no manifests" if judged["unreadable"] else ""
    style = "red" if lost(judged["totals"]) else "green"
    console.print(f"of the missing: {said}{unreadable}", style=style, markup=False, soft_wrap=True)
    if hint := not_landed(judged["totals"]):
        console.print(hint, markup=False, soft_wrap=True)


def _show_compared(console: Console, compared: dict[str, Any]) -> None:
    totals = compared["totals"]
    _print_ranges(console, "absent from the table", compared["absent"], "red")
    verdict = (
        f"table: {totals['absent']:,} of {totals['in_topics']:,} records absent, {totals['only_in_table']:,} only in "
        f"the table, without an id {totals['without_id_in_topics']:,} in the topics and "
        f"{totals['without_id_in_table']:,} in the table"
    )
    console.print(verdict, style="red" if totals["absent"] else "green", markup=False, soft_wrap=True)
    if hint := fewer_without_id(totals):
        console.print(hint, style="yellow", markup=False, soft_wrap=True)


def _print_ranges(console: Console, what: str, ranges: list[dict[str, Any]], style: str | None = None) -> None:
    for one in ranges:
        line = f"{what}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {_count(one):,}"
        console.print(line, style=style, markup=False, soft_wrap=True)


def _table(epochs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    # Two lines, as one of 80 columns has no room beside the counts; what is longer still is folded, and never cut.
    table.add_column("producer/epoch\nsequences", overflow="fold")
    for title in _COUNTS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for one in epochs:
        counts = ("?" if one[name] is None else f"{one[name]:,}" for name in _COUNTS)
        named = f"{one['producer_id']}/{one['epoch']}\n{sequences(one)}"
        table.add_row(named, *counts, style="red" if one["missing"] else None)
    return table

"""The engine that answers ``aiorecover audit``."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console

from aiorecover.audit import local
from aiorecover.cli.auditing.show import count_of
from aiorecover.cli.options import pairs
from aiorecover.errors import ConfigError
from aiorecover.extras import extra
from aiorecover.record_id import parse_record_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.status import Status

    from aiorecover.cli.auditing.asked import Options

__all__ = ["ENGINES", "draw", "run"]

ENGINES = "local", "spark"

_KINDS = "missing", "repeated", "out_of_order", "conflicts"


def run(options: Options) -> dict[str, Any]:
    """Return the audit's totals, and up to ``limit`` of its epochs and of each kind of its ranges, the worst first.

    ``more`` names the lists that the limit has cut. Where topics and a table are named, the topics are audited, and
    ``compared`` says what of them the table lacks. With ``html`` there is a ``timeline``, for `draw`.

    Raises:
        ConfigError: an option, the installation, Kafka or the table needs mending; the message says which.
        EndedError: Spark has failed for another reason.
        StoppedError: a signal has ended it.

    """
    known_last = _known_last(options.last)
    _check(options)
    if options.html is not None:
        _check_page(options.html)
    engine = options.engine or ("spark" if options.for_spark else "local")
    if engine == "spark":
        from aiorecover.cli.auditing.by_spark import run_spark  # noqa: PLC0415 - pyspark is optional, and slow to import

        found = run_spark(options, known_last)
    else:
        found = _run_local(options, known_last)
    found["more"] = list(_cut(found))
    return found


def _check(options: Options) -> None:
    if options.engine not in (None, *ENGINES):
        raise ConfigError(f"--engine is local or spark: engine={options.engine!r}")
    if options.engine == "local" and options.for_spark:
        raise ConfigError(f"only Spark does that: leave out --engine local options={','.join(options.for_spark)}")
    if options.table is None and options.bootstrap_servers is None and not options.topics:
        raise ConfigError("say what to read: --bootstrap-servers and --topic, or --table, or all of them to compare")
    if options.manifests is not None and not options.bootstrap_servers:
        raise ConfigError(f"name Kafka's servers for --manifests, too: {options.bootstrap_servers=}")


def _run_local(options: Options, known_last: dict[tuple[str, int], int]) -> dict[str, Any]:
    if not options.bootstrap_servers:
        raise ConfigError("name Kafka's servers, host:port,...: --bootstrap-servers")
    if not options.topics:
        raise ConfigError("name the topics, each by itself: --topic")
    console = Console(stderr=True, highlight=False)
    with console.status("asking Kafka") as status:
        question = local.Question(
            bootstrap_servers=options.bootstrap_servers,
            topics=options.topics,
            known_last=known_last,
            manifests=options.manifests,
            from_first=options.from_first,
            order=options.order,
            limit=options.limit,
            over_time=options.html is not None,
            options=pairs(options.kafka_options),
            on_progress=lambda count: _tell(status, count),
        )
        return uvloop.run(local.audit(question))


def _tell(status: Status, count: int) -> None:
    status.update(f"{count:,} records read")


def draw(html: pathlib.Path, options: Options, found: dict[str, Any]) -> None:
    """Write the page; the result has been printed before, whatever becomes of the page.

    Raises:
        ConfigError: it cannot be written.

    """
    from aiorecover.cli.auditing.page import page  # noqa: PLC0415 - only a page needs Jinja2

    try:
        html.write_text(page(found, options.shown()), encoding="utf-8")
    except OSError as error:
        raise _unwritten(html, error) from None


def _check_page(html: pathlib.Path) -> None:
    """See before the work, which may take hours, that the page can be written; leave no new file."""
    with extra("cli"):
        import jinja2  # noqa: F401, PLC0415 - only a page needs it
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


def _cut(found: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the lists that ``limit`` has cut."""
    totals = found["totals"]
    if len(found["epochs"]) < totals["epochs"]:
        yield "epochs"
    yield from (kind for kind in _KINDS if _records_in(found[kind]) < (totals[kind] or 0))
    if "manifests" in found and _records_in(found["manifests"]["ranges"]) < sum(found["manifests"]["totals"].values()):
        yield "manifests"
    if "compared" in found and _records_in(found["compared"]["absent"]) < found["compared"]["totals"]["absent"]:
        yield "compared"


def _records_in(ranges: list[dict[str, Any]]) -> int:
    return sum(map(count_of, ranges))


def _known_last(ids: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the highest sequence given for each epoch."""
    known: dict[tuple[str, int], int] = {}
    for text in ids:
        found = parse_record_id(text)
        if found is None:
            raise ConfigError(f"--last takes a record id, producer id/epoch/sequence: {text=}")
        producer_id, epoch, sequence = found
        known[producer_id, epoch] = max(sequence, known.get((producer_id, epoch), 0))
    return known

"""The application: the commands of the other modules, and demo, audit and land."""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys
from typing import Annotated

import typer
import uvloop

from aiorecover.cli.auditing import command as auditing
from aiorecover.cli.auditing import show as audit_show
from aiorecover.cli.auditing.asked import Options as AuditOptions
from aiorecover.cli.auditing.sentences import is_whole
from aiorecover.cli.broker_commands import add_to as add_broker_commands
from aiorecover.cli.demo import command as demo_command
from aiorecover.cli.demo.view import View, show_verdict
from aiorecover.cli.directory_commands import add_to as add_directory_commands
from aiorecover.cli.endings import FAILED, Commands, Output, print_json
from aiorecover.cli.letter_commands import app as letters
from aiorecover.cli.options import CONF, VERBOSE
from aiorecover.ring.writer import LANGUAGE

__all__ = ["app"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="aiorecover: publish to Kafka without waiting, and without losing a record.",
)

add_directory_commands(app)
add_broker_commands(app)
app.add_typer(letters, name="dead-letters")


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"aiorecover {importlib.metadata.version('aiorecover')} (writer in {LANGUAGE})\n")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def demo(
    records: Annotated[int, typer.Option(min=1, help="How many records to publish.")] = 60_000,
    rate: Annotated[int, typer.Option(min=1, help="Records published in a second.")] = 4_000,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Use this Kafka, host:port,..., which cannot be taken down. Default: an embedded one."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Default: a fresh topic.")] = None,
    wal_dir: Annotated[
        pathlib.Path | None,
        typer.Option(help="Directory of the write-ahead log, kept afterwards. Default: a temporary one."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same records and moments of failure.")] = 1,
    exactly_once: Annotated[
        bool,
        typer.Option(
            "--exactly-once",
            help="Publish in transactions, kill the publisher again and again, and count what is committed. "
            "Needs --bootstrap-servers.",
        ),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON on stdout, progress on stderr.")
    ] = False,
) -> None:
    """Publish while the broker goes down and the publishing process is killed, then count every record.

    Exit status 0: every accepted record is in Kafka, in order (and once, unless the broker is the embedded one, which
    does not recognise a batch that it has already). 1: it is not, or the demonstration failed.
    2: an option or an installation needs mending.
    """
    options = demo_command.Options(
        records=records,
        rate=rate,
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        wal_dir=wal_dir,
        seed=seed,
        exactly_once=exactly_once,
    )
    console = Output(stderr=json_output)
    outcome = uvloop.run(demo_command.run(options, View(console)))
    if json_output:
        print_json(outcome.as_json())
    else:
        show_verdict(console, outcome)
    raise typer.Exit(0 if outcome.verdict.good else FAILED)


@app.command()
def audit(
    engine: Annotated[
        str | None,
        typer.Option(
            help="local: in this process; spark: also tables, and clusters. Default: local, unless Spark is needed.",
            autocompletion=lambda: auditing.ENGINES,
        ),
    ] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka, host:port,...")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic; once for each topic that the producers publish to.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="A table to read: a path with a / in it, or a name. With topics: report what of them it lacks."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - Spark's word
        str | None, typer.Option(help="Format of the table; delta has Delta's package fetched. Default: what is there.")
    ] = None,
    last: Annotated[
        list[str] | None,
        typer.Option(
            help="The id of a record that was published: all before it in its epoch are looked for, too. May be given "
            "several times."
        ),
    ] = None,
    manifests: Annotated[
        str | None,
        typer.Option(help="The producers' audit_topic: it tells why records are missing, and finds missing tails."),
    ] = None,
    from_first: Annotated[
        bool,
        typer.Option(
            "--from-first", help="Begin with the oldest record that is there: what Kafka has deleted is not missing."
        ),
    ] = False,
    no_order: Annotated[
        bool,
        typer.Option("--no-order", help="Do not look for records out of order: it is quicker, as nothing is sorted."),
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Show so many epochs and ranges, the worst first.")] = 20,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print JSON; `more` names the lists that --limit has cut.")
    ] = False,
    html: Annotated[
        pathlib.Path | None, typer.Option(help="Write a page with a picture of completeness over time here.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Where Spark runs. Default: local[*].")] = None,
    conf: CONF = None,
    verbose: VERBOSE = False,
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of Kafka's client, as security_protocol=SSL; of Spark's Kafka source, as "
            "kafka.security.protocol=SSL."
        ),
    ] = None,
) -> None:
    """Name the records that are missing: in topics, in the table that they were landed in, or both.

    Topics are read in this process; a table, or --engine spark, needs Spark, which gives the same answer.

    For each producer and epoch: how many there should be (sequences begin with 1 and have no gaps), how many were
    found, repeated, and out of order in their partition. With topics and a table also what the table lacks of them.
    With --manifests: whether what is missing is a dead letter, still in the ring, or lost, and of how many epochs the
    end is not known (that is no failure: a producer that lives is one of these).

    Exit status 0: nothing is missing; with --manifests nothing is lost, nor, with a table alone, absent from it. 1:
    something is, or records that differ have one id. 2: there is no audit: an option, the installation or Kafka needs
    mending, or Spark failed; or the result is printed, and the page of --html could not be written. 130 or 143:
    stopped, by Ctrl-C or SIGTERM.
    """
    options = AuditOptions(
        engine=engine,
        bootstrap_servers=bootstrap_servers,
        topics=topic or [],
        table=table,
        format=format,
        last=last or [],
        manifests=manifests,
        from_first=from_first,
        order=not no_order,
        limit=limit,
        html=html,
        master=master,
        settings=conf or [],
        verbose=verbose,
        kafka_options=kafka_option or [],
    )
    found = auditing.run(options)
    if json_output:
        print_json(found)
    else:
        audit_show.show(Output(), found)
    if html is not None:
        auditing.draw(html, options, found)
    raise typer.Exit(0 if is_whole(found) else FAILED)


@app.command()
def land(
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka, host:port,...")],
    topic: Annotated[
        list[str], typer.Option(help="A topic; may be given several times. To a checkpoint's, others may be added.")
    ],
    target: Annotated[str, typer.Option(help="A directory, with a / in it, or the name of a table.")],
    checkpoint: Annotated[
        str, typer.Option(help="Directory of what has been done; belongs to the target for good. Must be given.")
    ] = "",
    format: Annotated[  # noqa: A002 - Spark's word
        str | None,
        typer.Option(
            help="iceberg, delta or parquet. Default: what is there; a new path: parquet.",
            autocompletion=lambda: ["iceberg", "delta", "parquet"],
        ),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Land what stands in Kafka now, and end.")
    ] = False,
    max_offsets_per_trigger: Annotated[int, typer.Option(min=1, help="Records of a batch, at most.")] = 1_000_000,
    files_per_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Files of a batch, at most. Default: the number of cores that Spark has at the start.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the sums of all batches as JSON, at the end.")
    ] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    conf: CONF = None,
    verbose: VERBOSE = False,
    kafka_option: Annotated[
        list[str] | None, typer.Option(help="An option of Spark's Kafka source, as kafka.security.protocol=SSL.")
    ] = None,
) -> None:
    """Land topics with Spark in a table of Iceberg or Delta, or in Parquet files, each record once, whatever is killed.

    Repeats are recognised by their record ids; records without one are landed as they come. Another record with an id
    that was landed goes to <target>__quarantine, as does one whose id cannot be read. A table that is not there is
    made.

    Exit status 0: all is landed (--available-now). 1: Spark failed. 2: an option, an installation or Kafka is wrong.
    3: what was to be landed next is not in Kafka any more, or a topic was deleted and made anew. 4: all is landed, and
    there were conflicts. 130 or 143: stopped, by Ctrl-C or SIGTERM; the next start goes on.
    """
    from aiorecover.cli import land as landing  # noqa: PLC0415 - pyspark is optional, and slow to import

    status = landing.run(
        landing.Options(
            bootstrap_servers=bootstrap_servers,
            topics=topic,
            target=target,
            checkpoint=checkpoint,
            format=format,
            available_now=available_now,
            max_offsets_per_trigger=max_offsets_per_trigger,
            files_per_batch=files_per_batch,
            json=json_output,
            master=master,
            settings=conf or [],
            verbose=verbose,
            kafka_options=kafka_option or [],
        ),
        Output(),
    )
    raise typer.Exit(status)

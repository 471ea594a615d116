"""The commands for a ``wal_dir``. Those that only look lock nothing and change nothing."""

from __future__ import annotations

import json
import pathlib
import sys
from contextlib import nullcontext
from itertools import islice
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import uvloop
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from aiorecover import RecoverableProducer
from aiorecover.cli import drainage, inspection
from aiorecover.cli.endings import FAILED, Output, print_json, reported
from aiorecover.cli.inspection import is_whole, show_checked, verified
from aiorecover.cli.options import JSON, OPTION, PATH, SERVERS, TOPIC, producer_of
from aiorecover.cli.records import Damage, New, about, lines, stored, text_of, without_bytes, write_lines
from aiorecover.cli.top import Watch, screen
from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

__all__ = ["add_to"]

LOOK_S: Final = 0.5  # between two looks for new records, at least
SHARE: Final = 4  # and so many times as long as a look takes


class Rate(ProgressColumn):
    """Records a second."""

    def render(self, task: Task) -> Text:
        """Return the rate of the last seconds."""
        return Text(f"{task.speed or 0:,.0f}/s")


class Bar(Progress):
    """A bar, and below it what the records wait for."""

    waits = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the lines."""
        yield from super().get_renderables()
        if self.waits:
            yield Text(text_of(self.waits.encode(), len(self.waits)), style="yellow")


COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())


def status(path: PATH, json_output: JSON = False) -> None:
    """Show what waits in each directory and for which partitions, also while its owner works.

    "unassigned": the topic's partitions are not known yet. "dead letters": Kafka refused them for good.

    No checksum is compared: `verify` does that.

    Exit status 0: no damage shows. 1: something is damaged or cannot be read, or damaged batches are kept aside.
    2: nothing of aiorecover is there.
    """
    found = inspection.inspect(path)
    if json_output:
        print_json(found)
    else:
        inspection.show(Output(), found)
    raise typer.Exit(FAILED if inspection.unreadable(found) else 0)


def cat(
    path: PATH,
    topic: TOPIC = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Show so many records, at most.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with records as they come, until Ctrl-C.")
    ] = False,
    json_output: JSON = False,
) -> None:
    """Show records that wait, each partition in its order, keys and values cut at 200 bytes; with --json whole.

    A terminal obeys nothing in them; a null shows as "no key", "no value". What is delivered between two looks of
    --follow does not show. With --limit, damage after the last record that is shown does not show either.

    Exit status 0: done. 1: something is damaged, as stderr says, or cannot be read. 2: nothing of aiorecover is there.
    130: Ctrl-C.
    """
    is_new, left, damage, described = New(), limit, Damage(), None
    while True:
        began = monotonic()
        paths = [one.path for one in inspection.instances_at(path)]
        found = (record for where, record in stored(paths, topic or (), damage=damage) if is_new(where, record))
        for record in islice(found, left):
            described = about(record)
            for line in [_json(described)] if json_output else lines(described):
                sys.stdout.write(line + "\n")
            left = left and left - 1
        sys.stdout.flush()
        status = damage.reported()
        if left == 0 or not follow:
            if topic and described is None:
                sys.stderr.write(f"no record waits for topic={','.join(topic)}\n")
            raise typer.Exit(status)
        sleep(max(LOOK_S, SHARE * (monotonic() - began)))


def verify(path: PATH, json_output: JSON = False) -> None:
    """Read every record that waits, and hold it against its checksum, also while its owner works.

    Exit status 0: all is whole. 1: something is damaged or cannot be read, or damaged batches are kept aside.
    2: nothing of aiorecover is there.
    """
    found = [verified(one.path) for one in inspection.instances_at(path)]
    if json_output:
        print_json(found)
    else:
        show_checked(Output(), found)
    raise typer.Exit(FAILED if not all(map(is_whole, found)) else 0)


def export(
    path: PATH,
    output: Annotated[
        pathlib.Path | None, typer.Option("--output", "-o", help="A new file. Default: standard output.")
    ] = None,
    topic: TOPIC = None,
) -> None:
    """Write all records that wait, dead letters with them, as JSON lines; the records stay where they are.

    What is not UTF-8 has a name that ends in _base64.

    Exit status 0: done. 1: something is damaged, as stderr says, or cannot be read, or the file is there or cannot be
    written. 2: nothing of aiorecover is there.
    """
    paths, damage = [one.path for one in inspection.instances_at(path)], Damage()
    found = (about(record) for _, record in stored(paths, topic or (), dead=None, damage=damage))
    lines = (_json(described).encode() for described in found)
    if output is None:
        sys.stdout.buffer.writelines(line + b"\n" for line in lines)
    else:
        write_lines(output, lines)
    raise typer.Exit(damage.reported())


def top(
    path: PATH,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    looks: Annotated[int | None, typer.Option(min=1, help="End after so many looks. Default: at Ctrl-C.")] = None,
    json_output: JSON = False,
) -> None:
    """Watch a directory live: rates, what waits, oldest partitions first, what holds them up, the newest dead letters.

    What holds partitions up is what their owner noted a second ago at the most; its log says more. With --json a line
    for each look.

    Exit status 0: --looks are over. 2: nothing of aiorecover is there. 130: Ctrl-C.
    """
    console = Output()
    live = Live(console=console, screen=True, auto_refresh=False) if console.is_terminal and not json_output else None
    with live or nullcontext():
        watch, left = Watch(path), looks
        while True:
            seen = watch.look()
            if json_output:
                print_json(seen)
            elif live is None:
                console.print(screen(seen, path, console.height))
            else:
                live.update(screen(seen, path, console.height), refresh=True)
            left = left and left - 1
            if left == 0:
                return
            sleep(every)


def drain(
    path: PATH,
    bootstrap_servers: SERVERS = None,
    option: OPTION = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds that it may take. Default: no limit.")] = None,
    json_output: JSON = False,
) -> None:
    """Deliver what waits in directories that no process has, and say when they are empty.

    Records that Kafka refuses become dead letters, which do not wait: see them (dead-letters list) before a discard.
    Options of the producer come as in the service: from variables (AIORECOVER_*), .env, aiorecover.toml, --option.

    Exit status 0: nothing waits any more. 1: something does, or damaged batches are kept aside. 2: an option is wrong,
    or nothing of aiorecover is there. 130: Ctrl-C; the next start goes on.
    """
    terminal = Console(stderr=True)
    with Bar(*COLUMNS, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        bar = progress.add_task("delivered", total=None)

        def report(done: int, total: int, waits: str) -> None:
            progress.waits = waits
            progress.update(bar, completed=done, total=total)

        def make(where: pathlib.Path) -> RecoverableProducer:
            return producer_of(where, bootstrap_servers, option or ())

        limit = None if timeout is None else int(timeout * 1000)
        outcomes = uvloop.run(drainage.drain(path, make, limit, report))
    if json_output:
        print_json(outcomes)
    else:
        console = Output()
        for one in outcomes:
            letters = f", {one['dead_lettered']:,} dead-lettered" if one["dead_lettered"] else ""
            line = f"{one['path']}: {one['delivered']:,} delivered{letters}, {one['left']:,} left"
            line += f", {inspection.kept_aside_as(one['kept_aside'])}" if one["kept_aside"] else ""
            console.say(line if one["error"] is None else f"{line}: {one['error']}")
    raise typer.Exit(0 if drainage.drained(outcomes) else FAILED)


def discard(
    path: PATH,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    json_output: JSON = False,
) -> None:
    """Throw away directories that no process has, with all records and dead letters in them, for good.

    Exit status 0: they are gone. 1: one has an owner, or cannot be read or removed. 2: --yes is missing, or nothing of
    aiorecover is there.
    """
    found = inspection.instances_at(path)
    for one in found:
        drainage.free(one)
    if not yes:
        about = inspection.inspect(path)
        if json_output:
            print_json(about)
        else:
            inspection.show(Output(), about)
        raise ConfigError("all of this is thrown away with --yes, and nothing is without")
    with reported(json_output) as report:
        for one in found:
            records, kept = drainage.discard(one.path)
            line = f"{one.path}: records thrown away: {records:,}"
            line += f", damaged batches that were kept aside: {kept:,}" if kept else ""
            report({"path": str(one.path), "records": records, "kept_aside": kept}, line)


def _json(described: dict[str, Any]) -> str:
    return json.dumps(without_bytes(described), ensure_ascii=False)


def add_to(app: typer.Typer) -> None:
    """Give the application these commands."""
    for command in (status, top, cat, verify, export, drain, discard):
        app.command()(command)

"""Tables for people (rich where it is installed, else plain text), JSON for machines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.setting import Result, Table

try:
    from rich.console import Console
    from rich.table import Table as RichTable
except ImportError:
    Console = None  # type: ignore[assignment,misc]

_WIDTH = 200  # where the output is no terminal: nothing is wrapped


def show(found: dict[str, Any], results: Sequence[Result]) -> None:
    """Print the machine and every table."""
    for line in machine.lines(found):
        print(line)
    for table in (table for result in results for table in result.tables):
        print()
        if Console is None:
            print(plain(table))
        else:
            _show_rich(table)
        for note in table.notes:
            print(f"  {note}")


def plain(table: Table) -> str:
    """A table as text: columns under each other, no colours."""
    rows = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    written = (
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join([table.title, *written])


def content(found: dict[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was measured, round by round, as JSON gives it back: its keys are text."""
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(
            {
                "machine": found,
                "load_average_at_the_end": machine.load_average(),
                "results": {result.name: result.data for result in results},
            }
        )
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _show_rich(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    drawn = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)

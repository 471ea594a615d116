"""The commands in docs/command_line.md, made from the typer app: ``python -m tests.support.commands``."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main

from aiorecover.cli.app import app
from tests.support.pages import DOCS, Made

HEAD = "What `--help` says of each; `…` stands for a value.\n\n"
TABLE = "| argument or option | default | what for |\n|---|---|---|\n"
NOTHING = (None, False, (), "")  # as a default


def text() -> str:
    """All of it, as it has to stand there."""
    return HEAD + "\n".join(_about(name, command) for name, command in commands())


def commands() -> Iterator[tuple[str, Any]]:
    """The name and the command of click, as typer lists them; those of a group by both of their names."""
    yield from _within(typer.main.get_command(app), "")


def _within(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _within(command, f"{before}{name} ")
        else:
            yield before + name, command


def _about(name: str, command: Any) -> str:
    said = re.sub(r"<(\w+)>", r"`<\1>`", inspect.cleandoc(command.help or ""))
    rows = "".join(_row(one) for one in command.params if one.name != "help")
    return f"### {name}\n\n{said}\n" + (f"\n{TABLE}{rows}" if rows else "")


def _row(one: Any) -> str:
    argument = one.param_type_name == "argument"
    names = [one.name.upper()] if argument else [*one.opts, *one.secondary_opts]
    value = "" if argument or one.is_flag else " …"
    default = "required" if one.required else "" if one.default in NOTHING else f"`{one.default}`"
    meaning = " ".join((one.help or "").split()).replace("|", "\\|")
    return f"| {', '.join(f'`{each}{value}`' for each in names)} | {default} | {meaning} |\n"


MADE = Made(DOCS / "command_line.md", "All commands", text)

if __name__ == "__main__":
    MADE.write()

"""docs/operating.md has each log event, each state and each field of the statistics, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aiorecover import RecoverableProducer, Statistics

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "operating.md").read_text(encoding="utf-8")
PACKAGE = REPOSITORY / "aiorecover"
LOGGERS = {"log", "_log"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT = re.compile(r"[a-z]+(_[a-z]+)*")
APART = ("spark", "cli", "testing")  # a logger of its own, or none


def rows(title: str) -> set[str]:
    """Return the first cells of the tables below a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def logged() -> Iterator[tuple[str, str]]:
    """Yield where a line is logged, and its first word: the literal that a logger, or the throttle, is called with."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in APART:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner, method = ast.unparse(node.func.value), node.func.attr
            throttled = owner.rpartition(".")[2] in {"throttle", "_throttle"} and method in {"warn", "over"}
            if throttled or (owner in LOGGERS and method in LEVELS):
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    yield f"{path.name}:{node.lineno}", str(first.value).partition(" ")[0]
                elif path.name != "log_throttle.py":  # which passes on what the others say
                    yield f"{path.name}:{node.lineno}", ""


def test_every_log_line_begins_with_an_event_that_the_page_explains() -> None:
    explained = rows("Log events")
    found = dict(logged())
    assert {where: event for where, event in found.items() if event not in explained} == {}
    assert all(EVENT.fullmatch(event) for event in explained)
    assert explained - set(found.values()) == set()


def test_the_page_has_every_state() -> None:
    assert rows("States") == set(re.findall(r"``(\w+)``", RecoverableProducer.state.__doc__ or ""))


def test_the_page_has_every_field_of_the_statistics() -> None:
    assert rows("Statistics") == set(Statistics.__struct_fields__)

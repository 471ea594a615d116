"""The mutants that the tests do not notice, each with its judgement: `survivors.toml`.

A survivor is judged once somebody has looked why nothing notices it, and has found that no test should: it is the same
program, or differs in what nothing promises. Any other survivor asks for a test.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Change", "entries", "judged"]

_FILE = Path(__file__).with_name("survivors.toml")


class Change(NamedTuple):
    """A line of a ``function`` of ``file``, before and after. Where in it the line stands does not matter: code moves.

    ``function``: with the class that it belongs to, as in ``Reader.take``; empty for what runs at import. ``number``:
    which of several in it that look the same, counted from 1.
    """

    file: str
    function: str
    before: str
    after: str
    number: int


def entries() -> list[tuple[Change, str]]:
    """Each judgement as it stands in the file; of several changes that look the same the first one, if none is told."""
    read = tomllib.loads(_FILE.read_text(encoding="utf-8")).get("survivor", [])
    return [
        (Change(one["file"], one["function"], one["before"], one["after"], one.get("number", 1)), one["why"])
        for one in read
    ]


@cache
def judged() -> Mapping[Change, str]:
    """Why it is right that nothing notices the change."""
    return dict(entries())

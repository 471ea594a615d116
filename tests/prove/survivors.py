"""The mutants that the tests do not notice, each with its judgement: `survivors.toml`.

A survivor is judged once somebody has looked why nothing notices it, and has found that no test should: it is the same
program, or differs in what nothing promises. Any other survivor asks for a test.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Change", "judged"]

_FILE = Path(__file__).with_name("survivors.toml")


class Change(NamedTuple):
    """A line of ``file``, before and after. Where the line stands does not matter: code moves."""

    file: str
    before: str
    after: str


@cache
def judged() -> Mapping[Change, str]:
    """Why it is right that nothing notices the change."""
    entries = tomllib.loads(_FILE.read_text(encoding="utf-8")).get("survivor", [])
    return {Change(one["file"], one["before"], one["after"]): one["why"] for one in entries}

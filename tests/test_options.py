"""docs/options.md says of each option what `Config` takes."""

import re
from dataclasses import fields

import pytest

from aiorecover.config import Config
from tests.support.options import MADE, NOT_GIVEN, rows


def test_the_page_says_what_the_configuration_is() -> None:
    assert MADE.found() == MADE.text(), "write it anew: python -m tests.support.options"


def test_every_option_that_can_be_set_has_a_line_with_a_meaning() -> None:
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows()]
    assert {name.strip("`") for name, *_ in cells} == {one.name for one in fields(Config)} - NOT_GIVEN
    assert all(len(row) == 3 and len(row[2]) > 10 for row in cells)


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.split("`")[1])
def test_a_default_of_the_page_said_aloud_changes_nothing(row: str) -> None:
    name, default = re.findall(r"\| ([^|]*) ", row)[:2]
    name = name.strip("`")
    if default == "required":
        return
    number, _, unit = default.strip("`").partition(" ")
    value = int(number) << {"KiB": 10, "MiB": 20, "GiB": 30}[unit] if unit else eval(number)  # noqa: S307 - our own text
    said = Config.from_options("wal", "localhost", {name: value})
    assert said == Config.from_options("wal", "localhost", {})

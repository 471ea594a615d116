"""docs/command_line.md has each command with its options, and no other."""

import re

from tests.support.commands import MADE, commands


def test_the_page_says_what_the_commands_take() -> None:
    assert MADE.found() == MADE.text(), "write it anew: python -m tests.support.commands"


def test_the_table_has_each_command_once() -> None:
    table = MADE.page.read_text(encoding="utf-8").partition("\n\nThose that change nothing")[0]
    assert sorted(re.findall(r"^\| `([\w -]+)` \|", table, re.MULTILINE)) == sorted(name for name, _ in commands())

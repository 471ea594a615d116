"""docs/publishing.md has each argument of `publish`, each field of a report and each error, and no other."""

import inspect
import re
from pathlib import Path

from aiorecover import DeliveryReport, RecoverableProducer

PAGE = (Path(__file__).parents[2] / "docs" / "publishing.md").read_text(encoding="utf-8")


def rows(title: str) -> list[tuple[list[str], str]]:
    """Return what is code in the first cell, and the second cell, of the rows of a section's table."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    return [(re.findall(r"`(\w+)`", first), second) for first, second in cells]


def test_each_argument_stands_there_with_its_default() -> None:
    parameters = list(inspect.signature(RecoverableProducer.publish).parameters.values())[1:]
    optional = {name: default.strip("`") for (name,), default in rows("Arguments") if default != "required"}
    assert [name for (name,), _ in rows("Arguments")] == [one.name for one in parameters]
    assert optional == {one.name: str(one.default) for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_each_field_of_a_report_stands_there() -> None:
    assert [name for names, _ in rows("What comes back") for name in names] == list(DeliveryReport.__struct_fields__)


def test_each_error_of_publish_stands_there() -> None:
    raised = set(re.findall(r"^ +(\w+Error):", inspect.getdoc(RecoverableProducer.publish) or "", re.MULTILINE))
    listed = {names[0] for names, _ in rows("Errors")}
    assert raised - {"RecoverError"} == listed - {"DeliveryPendingError", "PermanentDeliveryError"}

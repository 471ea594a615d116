"""The page of all options, `docs/options.md`, made from `Config`: ``python -m tests.support.options`` writes it."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

from aiorecover import config
from aiorecover.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
NOT_GIVEN = {"file_system", "client"}  # what `Config` makes of the options that are given
NOT_YET = {name for name, _ in config._NOT_YET}
UNITS = {"_ms": "ms", "_bytes": "bytes", "_size": "bytes"}
HEAD = """\
# Options

`RecoverableProducer(wal_dir, *, bootstrap_servers, **options)`. Unknown, wrong and conflicting options are a
`ConfigError` when the producer is made; nothing has touched the disk or the network by then.

"""
TABLE = "| option | default | unit | what for |\n|---|---|---|---|\n"


def page() -> str:
    """All of it, as it has to stand there."""
    return HEAD + TABLE + "".join(f"{row}\n" for row in rows()) + "\n" + "\n\n".join(_beside()) + "\n"


def rows() -> Iterator[str]:
    """A line of the table for each option that can be set today."""
    meanings = dict(_meanings())
    for one in fields(Config):
        if one.name in NOT_GIVEN | NOT_YET:
            continue
        unit = next((unit for end, unit in UNITS.items() if one.name.endswith(end)), "")
        default = "required" if one.default is MISSING else _default(one.name, unit)
        yield f"| `{one.name}` | {default} | {unit} | {meanings[one.name]} |"


def _meanings() -> Iterator[tuple[str, str]]:
    """Name and sentence of each attribute in the docstring of `Config`."""
    _, _, attributes = inspect.cleandoc(Config.__doc__ or "").partition("Attributes:\n")
    for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
        yield name, re.sub(r"\s+", " ", meaning).replace("``", "`")


def _default(name: str, unit: str) -> str:
    """As `Config` sets it where nothing is given."""
    value = getattr(Config.from_options("wal", "localhost", {}), name)
    if unit == "bytes":
        for size, prefix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size} {prefix}"
    return f"`{value!r}`" if not isinstance(value, str) else f'`"{value}"`'


def _beside() -> Iterator[str]:
    passed = sorted(config._CLIENT_OPTIONS)
    yield "Passed on to aiokafka as they are: " + _listed(passed) + "."
    yield "Decided by the library, and refused with a reason: " + _listed(name for name, _, _ in config._FORCED) + "."
    yield "Known, and refused until a later version has them: " + _listed(sorted(NOT_YET)) + "."


def _listed(names: Iterator[str] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

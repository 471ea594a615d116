"""The table of docs/options.md, made from `Config`: ``python -m tests.support.options`` writes it there."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields

from aiorecover import config
from aiorecover.config import Config
from tests.support.pages import DOCS, Made

NOT_GIVEN = {"files", "client"}  # what `Config` makes of the options that are given
SIZES = ("_bytes", "_size")
HEAD = """\
`RecoverableProducer(wal_dir, *, bootstrap_servers, **options)`. Unknown, wrong and conflicting options are a
`ConfigError` when the producer is made; nothing has touched the disk or the network by then.

"""
WIDTH = 120
TABLE = "| option | default | what for |\n|---|---|---|\n"


def text() -> str:
    """All of it, as it has to stand there."""
    return HEAD + TABLE + "".join(f"{row}\n" for row in rows()) + "\n" + "\n\n".join(_beside()) + "\n"


def rows() -> Iterator[str]:
    """A line of the table for each option that can be set."""
    meanings = dict(_meanings())
    for one in fields(Config):
        if one.name in NOT_GIVEN:
            continue
        default = "required" if one.default is MISSING else _default(one.name)
        yield f"| `{one.name}` | {default} | {meanings[one.name]} |"


def _meanings() -> Iterator[tuple[str, str]]:
    """Name and sentence of each attribute in the docstring of `Config`."""
    _, _, attributes = inspect.cleandoc(Config.__doc__ or "").partition("Attributes:\n")
    for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
        yield name, re.sub(r"\s+", " ", meaning).replace("``", "`")


def _default(name: str) -> str:
    """As `Config` sets it where nothing is given."""
    value = getattr(Config.from_options("wal", "localhost", {}), name)
    if name.endswith(SIZES) and value is not None:
        for size, prefix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size} {prefix}"
    return f"`{value!r}`" if not isinstance(value, str) else f'`"{value}"`'


def _beside() -> Iterator[str]:
    passed = sorted(config.Options.__annotations__.keys() - {one.name for one in fields(Config)})
    yield _filled("Passed on to aiokafka as they are", passed)
    yield _filled(
        "Decided by the library, and refused with a reason if they say something else",
        [name for name, _, _ in config._FORCED],
    )


def _filled(what: str, names: list[str]) -> str:
    return textwrap.fill(f"{what}: " + ", ".join(f"`{name}`" for name in names) + ".", WIDTH)


MADE = Made(DOCS / "options.md", "All options", text)

if __name__ == "__main__":
    MADE.write()

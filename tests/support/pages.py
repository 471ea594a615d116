"""The parts of the pages in docs/ that are made from the code; a test holds each against it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCS", "Made"]

DOCS = Path(__file__).parents[2] / "docs"


class Made(NamedTuple):
    """The part of a page below a heading of the second level, up to the next one."""

    page: Path
    title: str
    text: Callable[[], str]

    def found(self) -> str:
        """Return what stands there."""
        return self._parts()[1]

    def write(self) -> None:
        """Put there what is to stand there."""
        before, _, after = self._parts()
        self.page.write_text(before + self.text() + after, encoding="utf-8")

    def _parts(self) -> tuple[str, str, str]:
        before, title, rest = self.page.read_text(encoding="utf-8").partition(f"## {self.title}\n\n")
        made, following, after = rest.partition("\n## ")
        return before + title, made, following + after

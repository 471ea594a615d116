"""The lines in which a workload says what it knows; one that a crash has torn or mixed with others says nothing."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Said", "hear", "line"]

_END = "."
_NUMBERS = {"O": 1, "A": 3, "D": 2}


class Said(NamedTuple):
    """One line; what the words mean stands in `tests.power.workload`."""

    word: str
    point: int
    numbers: tuple[int, ...]


def line(word: str, point: int, *numbers: int) -> bytes:
    """A line with its end."""
    return " ".join(map(str, (word, point, *numbers, _END))).encode() + b"\n"


def hear(lines: Iterable[str]) -> list[Said]:
    """Every line that is whole, in order."""
    return [said for text in lines if (said := _heard(text)) is not None]


def _heard(text: str) -> Said | None:
    word, *rest = text.split() or [""]
    if word not in _NUMBERS or len(rest) != _NUMBERS[word] + 2 or rest.pop() != _END:
        return None
    if not all(number.isdigit() for number in rest):
        return None
    point, *numbers = map(int, rest)
    return Said(word, point, tuple(numbers))

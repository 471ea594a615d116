"""Ours beside Spark's own, by turns in one Spark: what is the same for all of them."""

import time
from collections.abc import Callable, Mapping

from benchmarks.figures import Spread, spread
from benchmarks.setting import Table

__all__ = ["CORES", "NAME", "Seconds", "table", "turns"]

CORES = 2
NAME = "aiorecover benchmarks"

Seconds = dict[str, float]
"""The seconds of a round, by contender; ``plain`` is Spark's own."""


def turns(contenders: Mapping[str, Callable[[int], Callable[[], object]]], rounds: int) -> list[Seconds]:
    """The seconds of each round but the first, which warms Java up.

    A contender is given the round's number, and does its work; what it gives back is called when the clock has stopped,
    to see whether it did.
    """
    measured = []
    for number in range(rounds + 1):
        seconds = {}
        for name, contender in contenders.items():
            began = time.perf_counter()
            check = contender(number)
            seconds[name] = time.perf_counter() - began
            check()
        measured.append(seconds)
    return measured[1:]


def table(title: str, names: Mapping[str, str], measured: list[Seconds], rows: int, note: str) -> Table:
    """``names``: of the contenders, for people; ``rows``: that each of them went through."""
    ratios = {key: Spread(tuple(one[key] / one["plain"] for one in measured)) for key in names}
    return Table(
        title=title,
        columns=["", "us a row", "times Spark's own"],
        rows=[
            [name, spread(measured, key, 1e6 / rows).text(".2f"), "1" if key == "plain" else ratios[key].text(".2f")]
            for key, name in names.items()
        ],
        notes=[f"medians over {len(measured)} rounds in turns (least to greatest)", note],
    )

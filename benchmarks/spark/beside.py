"""Contenders that take turns in one Spark."""

import time
from collections.abc import Callable, Mapping

__all__ = ["CORES", "NAME", "Seconds", "turns"]

CORES = 2
NAME = "aiorecover benchmarks"

Seconds = dict[str, float]
"""The seconds of a round, by contender."""


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

"""A driver that dies at one step of one batch, without a process of its own."""

import pytest
from pyspark.sql import DataFrame

from aiorecover.spark.stores import Store

__all__ = ["DeathError", "die_in_batch"]


class DeathError(Exception):
    """The end of the driver: nothing after it happens."""


def die_in_batch(
    monkeypatch: pytest.MonkeyPatch, store: type[Store], suffix: str, batch_id: int, *, added: bool
) -> None:
    """Have the driver die before or, with ``added``, after the table whose name ends in ``suffix`` gets this batch."""
    append = store.append

    def append_or_die(self: Store, rows: DataFrame, number: int, mark: str) -> None:
        dies = number == batch_id and self.name.endswith(suffix)
        if dies and not added:
            raise DeathError
        append(self, rows, number, mark)
        if dies:
            raise DeathError

    monkeypatch.setattr(store, "append", append_or_die)

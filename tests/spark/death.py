"""Drivers that die at a certain moment of a certain batch, without a process of their own."""

import pytest
from pyspark.sql import DataFrame

from aiorecover.spark.stores import Store

__all__ = ["DeathError", "dying"]


class DeathError(Exception):
    """Ends a batch as the end of its driver would: nothing after it happens."""


def dying(monkeypatch: pytest.MonkeyPatch, store: type[Store], suffix: str, batch_id: int, *, added: bool) -> None:
    """Die with this batch in the store whose name ends with ``suffix``, or right before it is ``added``."""
    append = store.append

    def dies(self: Store, rows: DataFrame, number: int, mark: str) -> None:
        here = number == batch_id and self.name.endswith(suffix)
        if here and not added:
            raise DeathError
        append(self, rows, number, mark)
        if here:
            raise DeathError

    monkeypatch.setattr(store, "append", dies)

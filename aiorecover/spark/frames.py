"""Data frames: checked where they come from a caller, and kept in memory where several answers are made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame

__all__ = ["HEADERS", "TEXT", "WHOLE", "Persisted", "check_columns"]

# Types as Spark writes them; the first one is the one to cast to.
TEXT = ("string",)
WHOLE = ("bigint", "int", "smallint", "tinyint")
HEADERS = ("array<struct<key:string,value:binary>>",)


def check_columns(name: str, df: DataFrame, types: Mapping[str, tuple[str, ...]], needed: Iterable[str] = ()) -> None:
    """Check the types of those columns of ``types`` that are there, and that all ``needed`` columns are there.

    Raises:
        ConfigError: a column has another type, which Spark would compare in its own way, or is absent.

    """
    if absent := [one for one in needed if one not in df.columns]:
        raise ConfigError(f"columns are missing from {name}: add them absent={absent} needed={','.join(needed)}")
    for field in df.schema.fields:
        found = field.dataType.simpleString().lower()
        if field.name in types and found not in types[field.name]:
            raise ConfigError(f"the column {field.name} of {name} must be {types[field.name][0]}: cast it type={found}")


class Persisted:
    """Data frames made from ``_buckets``, which is persisted until `close`, or the end of ``with``."""

    _buckets: DataFrame

    def close(self) -> None:
        """Free what was persisted; using the data frames after that reads the records again."""
        self._buckets.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

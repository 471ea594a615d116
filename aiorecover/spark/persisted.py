"""What is found once and used as several data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame

__all__ = ["Persisted"]


class Persisted:
    """Data frames made from ``_buckets``, which is persisted until `close`, or the end of ``with``."""

    _buckets: DataFrame

    def close(self) -> None:
        """Give back what was persisted; using the data frames afterwards reads the records again."""
        self._buckets.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

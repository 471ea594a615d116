"""Makes the format ``aiorecover`` known: Spark looks for ``DefaultSource`` in modules named ``pyspark_*``.

It is imported in every session that reads anything, so nothing but pyspark is imported before the source is used.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Rings as data frames: :mod:`aiorecover.spark.source` tells how."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "aiorecover"

    def schema(self) -> StructType:
        """Return the columns."""
        from aiorecover.spark import source  # noqa: PLC0415 - see above

        source.check(self.options)  # here, so that `load` says it, and not the first use of the data frame
        return source.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the rings."""
        from aiorecover.spark import source  # noqa: PLC0415 - see above

        return source.RingReader(self.options, schema)

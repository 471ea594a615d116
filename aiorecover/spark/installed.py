"""Says clearly that pyspark is not there, or too old; imported before everything else that wants it."""

from aiorecover.errors import ConfigError
from aiorecover.extras import extra

with extra("spark"):
    import pyspark

__all__: list[str] = []

_OLDEST = (3, 5)  # it brought the functions for bitmaps

if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST:
    raise ConfigError(
        f"aiorecover.spark needs Spark 3.5 or newer: pip install 'aiorecover[spark]' pyspark={pyspark.__version__}"
    )

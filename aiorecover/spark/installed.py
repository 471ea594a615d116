"""Says clearly that pyspark is not there, or too old; imported before everything else that wants it."""

from aiorecover.errors import ConfigError

try:
    import pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"aiorecover.spark needs {error.name}, and Java 17 or newer: pip install 'aiorecover[spark]'", name="pyspark"
    ) from error

__all__: list[str] = []

_OLDEST = (3, 5)  # it brought the functions for bitmaps

if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST:
    raise ConfigError(
        f"aiorecover.spark needs Spark 3.5 or newer: pip install 'aiorecover[spark]' pyspark={pyspark.__version__}"
    )

"""Says clearly that pyspark, or pyarrow, is not there, or too old; imported before everything else that wants it."""

from aiorecover.errors import ConfigError

try:
    import pyarrow as pa  # noqa: F401 - pyspark leaves it out unless it is asked for
    import pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"aiorecover.spark needs {error.name}, and Java 17 or newer: pip install 'aiorecover[spark]'", name="pyspark"
    ) from error

__all__: list[str] = []

_OLDEST = (4, 1)  # it brought the Arrow writers, and its functions are used

if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST:
    raise ConfigError(
        f"aiorecover.spark needs Spark 4.1 or newer: pip install 'aiorecover[spark]' pyspark={pyspark.__version__}"
    )

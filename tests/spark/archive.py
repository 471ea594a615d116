"""`python -m tests.spark.archive`: have Spark write the archive of its classes, which the tests load, once.

Spark does a little of what the tests do, so that it loads most of their classes. That takes half a minute.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from tests.spark.session import start_spark, stop_spark
from tests.spark.settings import DRIVER_JAVA, MUTE, QUICK, archive_path
from tests.support.jars import JarsError, JavaMissingError

__all__ = ["archive_classes"]

_WITHIN_S = 300  # Java verifies the classes, and writes 170 MB


def archive_classes() -> None:
    """Write the archive, unless it exists."""
    path = archive_path()
    if path.exists():
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    options = f"{QUICK} {MUTE} -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory(prefix="aiorecover-spark-") as directory:
        session = start_spark(Path(directory), "classes", settings={DRIVER_JAVA: options})
        try:
            _use(session, Path(directory))
        finally:
            stop_spark(session, _WITHIN_S)
    unfinished.replace(path)


def _use(spark: SparkSession, directory: Path) -> None:
    observation = Observation()
    rows = spark.range(1_000).selectExpr("id % 7 AS key", "id", "cast(id AS string) AS value", "X'00' AS b")
    ranked = rows.withColumn("rank", F.row_number().over(Window.partitionBy("key").orderBy("id")))
    ranked.observe(observation, F.count(F.lit(1)).alias("rows")).write.parquet(f"{directory}/ranked")
    written = spark.read.parquet(f"{directory}/ranked")
    counts = written.groupBy("key").agg(F.count("id").alias("count"), F.bitmap_construct_agg("rank").alias("bits"))
    written.join(counts, "key", "left").where("rank < count").repartition(3).orderBy("id").collect()
    rows.select(F.to_json(F.struct("*")).alias("value")).write.text(f"{directory}/json")
    spark.read.json(f"{directory}/json").unionByName(rows.drop("b"), allowMissingColumns=True).collect()
    spark.sql("SHOW TABLES").collect()

    def land(batch: DataFrame, number: int) -> None:
        batch.persist().write.parquet(f"{directory}/landed/{number}")

    stream = spark.readStream.schema(written.schema).parquet(f"{directory}/ranked")
    query = stream.writeStream.foreachBatch(land).option("checkpointLocation", f"{directory}/query")
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    try:
        archive_classes()
    except JavaMissingError:
        pass  # the tests that need Java report it
    except JarsError as error:
        sys.exit(f"spark: {error}")

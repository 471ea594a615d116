"""`python -m tests.spark.archive`: have a Spark leave its classes for those that follow, if none has yet.

It does a little of what the tests do, so that most of the classes are there. That takes half a minute, once.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from tests.spark.settings import DRIVER_JAVA, QUICK, archive
from tests.spark.started import ended, started
from tests.support.jars import JarsError, JavaMissingError

__all__ = ["archive_classes"]

_WITHIN_S = 300  # Java verifies what it has loaded, and writes 170 MB


def archive_classes() -> None:
    """Make the archive, unless it is there."""
    kept = archive()
    if kept.exists():
        return
    unfinished = kept.with_suffix(f".{os.getpid()}")
    options = f"{QUICK} -Xlog:disable -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory(prefix="aiorecover-spark-") as directory:
        session = started(Path(directory), "classes", settings={DRIVER_JAVA: options})
        try:
            _work(session, Path(directory))
        finally:
            ended(session, _WITHIN_S)
    unfinished.replace(kept)


def _work(spark: SparkSession, directory: Path) -> None:
    told = Observation()
    rows = spark.range(1_000).selectExpr("id % 7 AS key", "id", "cast(id AS string) AS value", "X'00' AS b")
    ranked = rows.withColumn("rank", F.row_number().over(Window.partitionBy("key").orderBy("id")))
    ranked.observe(told, F.count(F.lit(1)).alias("rows")).write.parquet(f"{directory}/ranked")
    stored = spark.read.parquet(f"{directory}/ranked")
    counts = stored.groupBy("key").agg(F.count("id").alias("count"), F.bitmap_construct_agg("rank").alias("bits"))
    stored.join(counts, "key", "left").where("rank < count").repartition(3).orderBy("id").collect()
    rows.select(F.to_json(F.struct("*")).alias("value")).write.text(f"{directory}/json")
    spark.read.json(f"{directory}/json").unionByName(rows.drop("b"), allowMissingColumns=True).collect()
    spark.sql("SHOW TABLES").collect()

    def land(batch: DataFrame, number: int) -> None:
        batch.persist().write.parquet(f"{directory}/landed/{number}")

    stream = spark.readStream.schema(stored.schema).parquet(f"{directory}/ranked")
    query = stream.writeStream.foreachBatch(land).option("checkpointLocation", f"{directory}/query")
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    try:
        archive_classes()
    except JavaMissingError:
        pass  # the code that needs it says so
    except JarsError as error:
        sys.exit(f"spark: {error}")

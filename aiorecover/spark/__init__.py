"""Records after Kafka, with Spark: their ids as columns, an audit, and a table.

- `parse_record_id`: add ``producer_id``, ``epoch`` and ``sequence`` to Kafka's columns.
- `read_topics`: read all that is in some topics now.
- `audit`: find records that are missing, repeated, in conflict or out of order (:mod:`aiorecover.spark.auditing`).
- `read_manifests`: read what producers report of their own records; `judge`: the verdicts on missing records.
- `compare`: find what is in the topics and not in the table that they were landed in, by record id.
- `timeline`: completeness over time.
- `land`: topics into a table of Iceberg or Delta, or into Parquet files, each record once
  (:mod:`aiorecover.spark.landing`); `RecordsGoneError` where what was to be landed next is not in Kafka any more.
- `with_record_ids`: ids for rows that Spark's own Kafka sink publishes; `last_ids`: how many an audit must find.

Needs Spark 3.5 or newer (``pip install 'aiorecover[spark]'``) and Java 17 or newer; to read Kafka, Spark's connector
too, of exactly pyspark's version: ``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.2``. Only native
expressions are used, so it runs the same in ``local[2]`` and on a cluster, and the executors need no Python (but for
the format ``aiorecover``, which reads rings). Nothing that grows with the data is collected to the driver.
"""

from aiorecover.spark import packages as _packages  # noqa: F401 - first, because it says what is not installed
from aiorecover.spark.auditing import Audit, audit
from aiorecover.spark.comparing import Comparison, compare
from aiorecover.spark.failures import RecordsGoneError
from aiorecover.spark.landing import Landed, land
from aiorecover.spark.manifests import Manifests, judge, read_manifests
from aiorecover.spark.over_time import Timeline, timeline
from aiorecover.spark.record_id import last_ids, parse_record_id, with_record_ids
from aiorecover.spark.topics import read_topics

__all__ = [
    "Audit",
    "Comparison",
    "Landed",
    "Manifests",
    "RecordsGoneError",
    "Timeline",
    "audit",
    "compare",
    "judge",
    "land",
    "last_ids",
    "parse_record_id",
    "read_manifests",
    "read_topics",
    "timeline",
    "with_record_ids",
]

"""What becomes of the records downstream, with Spark: their ids as columns, an audit, and a table.

- `parse_record_id`: Kafka's columns plus ``producer_id``, ``epoch``, ``sequence``.
- `audit`: which records are missing, repeated or out of order (:mod:`aiorecover.spark.auditing` tells how).
- `read_manifests`: what producers tell of their own records on an audit topic.
- `judge`: what that makes of those that are missing.
- `compare`: what is in the topics and not in the table that they were landed in, by record id.
- `timeline`: completeness over time.
- `land`: topics into a table of Iceberg or Delta, or into Parquet files, each record once
  (:mod:`aiorecover.spark.landing`); `RecordsGoneError` where it sees at its start that Kafka has not got any more what
  was to be landed next.
- `with_record_ids`: ids for rows that Spark's own Kafka sink publishes; `last_ids`: how many an audit is to find.
- `read_topics`: all that stands in some topics now, as `audit` wants it.

Needs Spark 3.5 or newer (``pip install 'aiorecover[spark]'``) and Java 17 or newer; to read Kafka, Spark's connector
too, of exactly pyspark's version: ``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.2``. Everything here is
native expressions on data frames, so it runs the same in ``local[2]`` and on a cluster, and no Python is needed on the
executors (the format ``aiorecover``, which reads rings, needs it there). Nothing that grows with the data is collected
to the driver.
"""

from aiorecover.spark import installed as _installed  # noqa: F401 - first, so that it says what the others lack
from aiorecover.spark.auditing import Audit, audit
from aiorecover.spark.comparing import Comparison, compare
from aiorecover.spark.gone import RecordsGoneError
from aiorecover.spark.landing import Landed, land
from aiorecover.spark.manifests import Manifests, judge, read_manifests
from aiorecover.spark.numbering import last_ids, with_record_ids
from aiorecover.spark.over_time import Timeline, timeline
from aiorecover.spark.record_id import parse_record_id
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

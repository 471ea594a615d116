"""Data frames into Kafka through the recoverable producer: ``df.write.format("aiorecover")`` and ``df.writeStream``.

::

    orders.select("key", "value").write.format("aiorecover").option("bootstrap_servers", "localhost:9092").option(
        "topic", "orders"
    ).option("manifest_topic", "orders-manifests").mode("append").save()

What Spark does and what follows
    A task may be run more than once: after an error, when its executor died, or twice at a time (speculation). Of each
    attempt any part may be in Kafka by then. A batch of a stream is run again as a whole when the driver died before it
    wrote down that the batch is done. The rows of a task need not come in the same order again, so the place of a row
    is no name for it. So records of two attempts cannot be matched one by one: of each task exactly one attempt counts,
    whole, and the records of the others are *leftovers*.

    1. Each attempt publishes through a producer with a directory of its own: its records have ids that nobody else
       has, 1 to the last without a gap. Each has a header ``aiorecover-write: <job>/<batch>`` (some 35 bytes), which
       names its *write*: one ``save()``, or one batch of a stream. By it anybody tells a sink's record from others',
       and to which manifest it belongs.
    2. The attempt counts its rows, waits until all are in Kafka or dead letters, and only then tells the driver:
       producer id, epoch, first and last sequence, the sequences of dead letters, how many rows it had. That is all
       that the driver gets: a message for each task, of bounded size.
    3. Spark takes one attempt of each task. The driver publishes their messages as the *manifest* of the write. If a
       ``save()`` fails, its manifest names none. Only where it fails because Kafka has not acknowledged the manifest
       within ``timeout_ms`` nobody knows: it is not sent any more, but may be there, and then counts. With ``job_id``
       that does no harm: run it again, and it is the same write.

    A record of a write counts if the manifest of the write names its producer. It is a leftover if the manifest does
    not. As long as there is no manifest it is undecided. Several manifests of one write (the driver died between the
    manifest and its own log, and has run the batch again): the first one counts, for whoever reads, at any time; it
    named attempts that are whole, and so does the second one, whose records are leftovers then.

    A write stays undecided for good if its driver is killed before its manifest, if a ``save()`` with a ``job_id``
    fails and is not run again (it may be, so nobody else says that it counts for nothing), or if a stream's checkpoint
    is gone. `aiorecover.spark.give_up_writes`, or ``aiorecover give-up``, makes its records leftovers.

    Readers that know this: ``land(..., sink_manifests=topic)``, ``audit(..., sink_manifests=...)``, `compare`, and for
    anything else `without_leftovers`. To others a leftover is a repeat: at least once, as with Spark's own sink.

The job's name: of a stream its query's id, which the checkpoint keeps; of a ``save()`` a random one, or the option
``job_id``: two writes with the same one are one, of which the first to finish counts. So in ``foreachBatch``, or where
a scheduler may start a job again: ``.option("job_id", f"{name}/{batch_id}")``.

A name is used again only for the same rows. So before its manifest the driver looks whether there is one already, at
the end of the manifest topic (:mod:`aiorecover.spark.decided`), which takes the right to read it. A ``job_id`` with
another number of rows is refused, and with the same number a line in the log says that its rows do not count, for
nothing tells whether they are the same ones. A batch of a stream is refused behind which a later one has its manifest:
its checkpoint was put back to an older state, and its rows would count for nothing. Where such a stream begins with the
very last batch that was written, no later one tells; another number of rows is then a line in the log.

Columns: ``value``, and where they are there ``topic``, ``key``, ``partition``, ``timestamp``, ``headers`` (as Spark's
Kafka source gives them); others are passed over, as by Spark's own sink. ``topic``, the option, wins over the column.

Options
    bootstrap_servers   or ``kafka.bootstrap.servers``, as Spark's own sink has it
    topic               for all rows; none: the column ``topic``
    manifest_topic      required, must be there: a topic for manifests, kept as long as the records: one for all topics
                        that are audited together, and for no others
    wal_dir             a directory on every executor; default: where temporary files are (``TMPDIR``)
    job_id              see above
    timeout_ms          an attempt fails if not all is in Kafka by then (after the last row), or no room is in its ring
                        for so long (default 10 minutes)
    max_dead_letters    of one attempt; with more it fails (default 1000, at most 10,000)
    producer.<name>     the producer's own: ``producer.compression_type``, ``producer.security_protocol``,
                        ``producer.dead_letter_topic``, ...; ``producer.ssl_cafile``, ``ssl_certfile``, ``ssl_keyfile``,
                        ``ssl_password`` name files, for there is no way to hand over a context

What rests on the directory of an attempt: nothing. When the executor dies, the attempt has failed, and Spark runs the
task anew, so the ring need not survive: it is not flushed (``fsync="never"``), takes 256 MiB at most, and is removed
with the attempt; what a killed executor leaves, by a later attempt on that machine, after an hour. The ring is there so
that an outage of Kafka is waited out in order, and for the next lines.

Dead letters: what Kafka refuses for good (too large for the topic) does not fail the job. Its sequence stands in the
manifest, and it goes to ``producer.dead_letter_topic`` where that is set; else to ``dead_letters.jsonl`` on the
executor, as `DeadLetters.export` writes it (so they all do where a copy is refused in turn). Rows that no record can be
made of (too large for ``max_request_size``, no such partition, neither key nor value, no topic's name) are *refused*:
counted in the manifest, and written to ``refused.jsonl``, bytes as base64. A topic in the column that is not there
fails the attempt, which names it: it may be one that is still to be made, and its rows are well. Of the directory of an
attempt with one of these files nothing else is kept, as ``aiorecover-dead-letters-...`` where ``wal_dir`` says, and the
manifest says where: ``kept``. It is yours to remove: nobody else does. One line in the executor's log tells of dead
letters and refused rows, for each attempt that has some. More than ``max_dead_letters`` fail the attempt: that is a
mistake in the job, and no message has room for any number of them. Nothing is kept of an attempt that fails; one that
has succeeded, and does not count because another task has failed or was quicker, leaves its files, and no manifest
names them.

Order: as the rows come in the task, by partition of the topic. One attempt's; between two tasks there is none.

Only ``append``. In streams, output mode append. Needs Python with aiorecover on the executors.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from aiorecover.errors import ConfigError, DeliveryError, PermanentDeliveryError, RecoverError
from aiorecover.producer import RecoverableProducer
from aiorecover.spark.attempt import make_attempt
from aiorecover.spark.decided import check_write
from aiorecover.spark.sink_manifest import PART_BYTES, PARTITION, Attempt, Write, manifest_of
from aiorecover.spark.sink_plan import plan
from aiorecover.spark.topics_there import check_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiorecover.spark.sink_plan import Plan

__all__ = ["BatchWriter", "StreamWriter", "publish_manifest", "publish_parts"]

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_ABORT_WITHIN_MS = 30_000  # the job has failed already: Kafka may be why
_PENDING = "do not publish it again: "  # what a producer says of a record before it says why; there will be none soon

_log = logging.getLogger("aiorecover.spark")


class BatchWriter(DataSourceArrowWriter):
    """Made once on the driver, carried to the tasks, and back to the driver's `commit`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Raise `ConfigError` for what is wrong with options, columns or topics."""
        if overwrite:
            raise ConfigError('what is in a topic cannot be overwritten: .mode("append")')
        self._plan = plan(options, schema)
        self._write = Write(self._plan.job_id or uuid.uuid4().hex, 0)
        check_topics(self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of a task."""
        return _attempt(self._plan, self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the manifest, unless other rows were written under this ``job_id`` before."""
        attempts = _attempts(messages)
        if self._plan.job_id is not None:
            check_write(self._plan, self._write, attempts, of_stream=False)
        publish_manifest(self._plan, self._write, attempts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - as Spark calls it
        """Say that nothing of the write counts, so that nobody waits for its manifest; unless it may come again."""
        if self._plan.job_id is None:
            try:
                publish_manifest(replace(self._plan, timeout_ms=_ABORT_WITHIN_MS), self._write, ())
            except RecoverError as error:
                _log.warning("its records stay undecided: the failed write could not be told of error=%s", error)


class StreamWriter(DataSourceStreamArrowWriter):
    """As `BatchWriter`; another one commits than the one that writes."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise `ConfigError` for what is wrong with options, columns or topics."""
        self._plan = plan(options, schema)
        if self._plan.job_id is not None:
            raise ConfigError("a stream's name is its query's id, which the checkpoint keeps: leave job_id out")
        check_topics(self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of a task, in a batch whose number Spark tells."""
        query_id, batch_id = (_context().getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query_id is None or batch_id is None:
            raise ConfigError(f"this Spark does not tell a task its query and batch: use Spark 4.1 {query_id=}")
        return _attempt(self._plan, Write(query_id, int(batch_id)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as Spark calls it
        """Publish the manifest, unless a later batch has one."""
        attempts = _attempts(messages)
        if attempts:  # a batch without tasks has published nothing
            check_write(self._plan, attempts[0].write, attempts, of_stream=True)
            publish_manifest(self._plan, attempts[0].write, attempts)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _attempt(plan: Plan, write: Write, batches: Iterator[pa.RecordBatch]) -> Attempt:
    context = _context()
    made = make_attempt(plan, write, batches, partition=context.partitionId(), attempt=context.attemptNumber())
    _tell_of(made, plan)
    return made


def _tell_of(made: Attempt, plan: Plan) -> None:
    """One line of what was not published, if there is any."""
    letters = sum(last - first + 1 for first, last in made.dead_letters)
    if made.kept is not None:
        _log.warning(
            "rows were not published: look at the dead letters in dead_letters.jsonl, and at refused rows in "
            "refused.jsonl, at that path; the manifest names both dead_letters=%d refused=%d path=%s",
            letters,
            made.refused,
            made.kept,
        )
    elif letters:
        _log.warning(
            "rows were not published, and are in the dead letter topic; the manifest names them "
            "dead_letters=%d dead_letter_topic=%s",
            letters,
            plan.producer["dead_letter_topic"],
        )


def _attempts(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    return [one for one in messages if isinstance(one, Attempt)]


def publish_manifest(plan: Plan, write: Write, attempts: Sequence[Attempt]) -> None:
    """Say which attempts count; when this returns, Kafka has it.

    Raises:
        ConfigError: the topic refuses it: the write has failed.
        DeliveryError: it has not acknowledged it within ``timeout_ms``, and nothing more of it is sent: it may count.

    """
    publish_parts(plan, manifest_of(write, attempts))


def publish_parts(plan: Plan, parts: Sequence[tuple[bytes, bytes]]) -> None:
    """The same, of what makes up manifests."""
    with tempfile.TemporaryDirectory(prefix="aiorecover-manifest-") as directory:
        asyncio.run(_publish(plan, parts, Path(directory)))


async def _publish(plan: Plan, parts: Sequence[tuple[bytes, bytes]], directory: Path) -> None:
    """Through a producer, too: the driver waits an outage out as the tasks do.

    Raises:
        ConfigError: the topic refuses it for good.
        DeliveryError: not all is acknowledged within ``timeout_ms``.

    """
    async with RecoverableProducer(directory, bootstrap_servers=plan.bootstrap_servers, **plan.options()) as producer:
        try:
            receipts = [
                await producer.publish(plan.manifest_topic, value, key=key, partition=PARTITION) for key, value in parts
            ]
            for receipt in receipts:
                await receipt.delivered(plan.timeout_ms)
        except BaseException as error:
            await producer.stop(timeout_ms=0)  # what has failed is not to count all the same, seconds later
            if isinstance(error, DeliveryError):
                raise _told(plan, error) from None
            raise


def _told(plan: Plan, error: DeliveryError) -> RecoverError:
    """What it means that a manifest is not delivered."""
    if isinstance(error, PermanentDeliveryError):
        return ConfigError(
            "Kafka refuses the manifest, so the write has failed and counts for nothing: mend the manifest topic, "
            f"which must take records of {PART_BYTES} bytes manifest_topic={plan.manifest_topic} error={error}"
        )
    return DeliveryError(
        "Kafka has not acknowledged the manifest in time, and it is not sent any more: mend Kafka, or raise "
        "timeout_ms; it may be there all the same, and then the write counts: look for it before the write is done "
        "again, unless that has the same job_id "
        f"manifest_topic={plan.manifest_topic} error={str(error).rpartition(_PENDING)[2]}"
    )

"""``dead_letter_topic``: each dead letter is also published there, as a record of its own.

The first of the two flushes of its rewriting covers the copy, so it is not lost; a crash before the second one
publishes it once more. A dead letter of that topic itself is not copied: a copy that is refused is a letter beside the
first one, and stays where that has been purged already. The headers of a copy are those of the record
and these, Kafka Connect's where it has a name:

    __connect.errors.topic, __connect.errors.partition     where it was to go; no partition: it was not known
    __connect.errors.exception.message                     why it did not get there
    aiorecover-dlq-id                                      the record's id
    aiorecover-dlq-timestamp                               its timestamp, ms since 1970; the copy has the present
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from aiorecover.record_id import RECORD_ID_HEADER
from aiorecover.ring.records import decode, id_of
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

TURN_S = 0.002  # on the loop at a time
CONNECT, OWN = "__connect.errors.", "aiorecover-dlq-"  # what the headers of a copy begin with

_log = logging.getLogger("aiorecover")


async def publish_copies(delivery: "Delivery", topic: str, batch: Batch, data: bytes, reason: str) -> None:
    """Publish what becomes dead letters, the records ``data`` of a batch, to the topic, too."""
    if batch.lane.topic == topic:
        return
    at, failed, why = 0, 0, ""
    turn = time.monotonic()
    while at < len(data):
        record, at = decode(data, at)
        headers = [one for one in record.headers if one[0] != RECORD_ID_HEADER]
        partition = "" if batch.lane.partition < 0 else str(batch.lane.partition)
        for name, text in (
            (f"{CONNECT}topic", batch.lane.topic),
            (f"{CONNECT}partition", partition),
            (f"{CONNECT}exception.message", reason),
            (f"{OWN}id", "{}/{}/{}".format(*id_of(data, at))),
            (f"{OWN}timestamp", str(batch.base + record.timestamp_delta)),
        ):
            headers.append((name, text.encode()))
        try:
            delivery.writer.append(topic, record.key, record.value, delivery.ring.files.now_ms(), headers)
        except Exception as error:  # noqa: BLE001 - no room, or the caller's partitioner: the letter itself is kept
            failed, why = failed + 1, str(error)
        if time.monotonic() - turn > TURN_S:
            await asyncio.sleep(0)
            turn = time.monotonic()
    if failed:
        _log.error(
            "dead_letter_copy_failed dead letters are kept, but not published to dead_letter_topic: %s "
            "lane=%s records=%d",
            why,
            batch.lane,
            failed,
        )

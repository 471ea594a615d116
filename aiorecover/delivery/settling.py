"""How a batch that is in Kafka leaves the ring (I3), in transactions or not."""

from aiokafka.structs import RecordMetadata

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.refused import Refused
from aiorecover.delivery.reports import Reports
from aiorecover.receipt import DeliveryReport


async def settle_batch(
    batch: LaneBatch, topic: str, metadata: RecordMetadata, *, reports: Reports, refused: Refused, expiry: Expiry
) -> list[tuple[int, DeliveryReport]]:
    """Tell everybody who wants to know first, then settle its frames; what is left for `Reports.tell`."""
    expiry.forget_rotten(batch)
    await refused.withdraw(batch)
    await reports.announce(batch, topic, metadata)
    waited = reports.collect(batch, topic, metadata)
    batch.settling = True
    for slot, places in batch.frames:
        slot.ring.settle(slot, places)
    return waited

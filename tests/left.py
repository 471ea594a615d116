"""What a producer that reaches no broker leaves in its directory."""

import asyncio
from pathlib import Path
from typing import Any

from aiorecover import RecoverableProducer

__all__ = ["NOWHERE", "SLOT", "leave"]

NOWHERE = "127.0.0.1:1"  # no broker listens there
SLOT = 16 * 1024
_OPTIONS: dict[str, Any] = {
    "bootstrap_servers": NOWHERE,
    "slot_bytes": SLOT,
    "max_request_size": 8192,
    "max_batch_size": 8192,
    "wal_min_free_bytes": 0,
    "stop_timeout_ms": 0,
}


def leave(wal_dir: Path, count: int, *, value: bytes = b"value", partition: int | None = None, **options: Any) -> str:
    """So many records; the producer's id. Each has a key, a number before its value, and a header."""

    async def publish() -> str:
        async with RecoverableProducer(wal_dir, **{**_OPTIONS, **options}) as producer:
            for number in range(1, count + 1):
                await producer.publish(
                    "orders",
                    b"%d/%b" % (number, value),
                    key=b"key %d" % number,
                    partition=partition,
                    timestamp_ms=1_700_000_000_000,
                    headers=[("h", b"\xff")],
                )
            return producer.producer_id

    return asyncio.run(publish())

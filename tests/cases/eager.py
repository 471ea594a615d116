"""A producer whose loop begins tasks eagerly: run by a Python of 3.12 or newer, driven over its standard streams.

    python eager.py WAL_DIR SERVERS TOPIC GUARANTEE

It writes the ids of what was accepted, a line each, and ``published`` after every 500 of them; it goes on with each
line that it reads.
"""

import asyncio
import sys
from typing import Any

from aiorecover import RecoverableProducer

BATCH = 500
WITHIN_MS = 60_000


def next_line() -> str:
    return sys.stdin.readline()


async def main(wal_dir: str, servers: str, topic: str, guarantee: Any) -> None:
    if hasattr(asyncio, "eager_task_factory"):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    for _ in range(2):  # the second one adopts what a stop that was cut off has left
        async with RecoverableProducer(
            wal_dir, bootstrap_servers=servers, guarantee=guarantee, stop_timeout_ms=500, linger_ms=1
        ) as producer:
            for _ in range(2):
                for number in range(BATCH):
                    receipt = await producer.publish(topic, b"%d" % number, key=b"k%d" % (number % 7))
                    print(receipt.record_id, f"k{number % 7}", number)
                print("published", flush=True)
                await asyncio.to_thread(next_line)
            waiting = asyncio.create_task(producer.flush())
            await asyncio.sleep(0)
            waiting.cancel()
    async with RecoverableProducer(wal_dir, bootstrap_servers=servers, guarantee=guarantee) as producer:
        await producer.flush(WITHIN_MS)
    print("delivered", flush=True)


asyncio.run(main(*sys.argv[1:]))

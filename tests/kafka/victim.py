"""A process that publishes until it is killed, and writes down each record that was accepted.

python -m tests.kafka.victim WAL_DIR BOOTSTRAP_SERVERS TOPIC LOG SEED [GUARANTEE]
"""

import asyncio
import os
import random
import sys

from aiorecover.core.producer import RecoverableProducer

KEYS = 40


async def main(wal_dir: str, servers: str, topic: str, log: str, seed: str, guarantee: str = "at_least_once") -> None:
    chance = random.Random(int(seed))
    number = int(seed) * 1_000_000
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    fsync = "always" if guarantee == "at_least_once" and chance.random() < 0.2 else "interval"
    producer = RecoverableProducer(wal_dir, bootstrap_servers=servers, guarantee=guarantee, fsync=fsync)
    async with producer:
        while True:
            for _ in range(chance.choice((1, 10, 300))):
                number += 1
                key = b"key-%d" % (number % KEYS) if number % 11 else None
                value = b"%d:" % number + b"x" * chance.randrange(300)
                receipt = await producer.publish(topic, value, key=key)
                name = "" if key is None else key.decode()
                os.write(file, f"{receipt.record_id} {name} {value.decode()}\n".encode())
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.02)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

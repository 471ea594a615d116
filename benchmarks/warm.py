"""Topics in which every partition holds several batches: with the second one a broker begins the partition's index.

That takes it about 10 ms, once for each partition, and so 5 to 30 s where a thousand begin at once.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import kafka, load
from benchmarks.child import call
from benchmarks.setting import Setting

BATCHES = 3
RECORDS = 20  # in each of them, of each partition: above the 4 KB from which on a broker's index gets an entry
RECORDS_A_PARTITION = BATCHES * RECORDS


@contextmanager
def topics(setting: Setting, name: str, partitions: Iterable[int]) -> Iterator[dict[int, str]]:
    """A topic for each number of partitions, removed afterwards; `RECORDS_A_PARTITION` stand in every partition."""
    with ExitStack() as stack:
        found = {
            number: stack.enter_context(kafka.topic(setting.cluster, f"{name}-{number}", number))
            for number in partitions
        }
        for number, topic in found.items():
            setting.say(f"{name}: warming up {number} partitions")
            with setting.wal_dir() as wal_dir:
                servers = setting.cluster.bootstrap_servers
                call(fill, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir, partitions=number)
        yield found


async def fill(bootstrap_servers: str, topic: str, wal_dir: str, partitions: int) -> None:
    """In a process of its own."""
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        for _ in range(BATCHES):
            for number in range(partitions * RECORDS):
                await producer.publish(topic, load.VALUE, partition=number % partitions)
            await producer.flush()

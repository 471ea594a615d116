"""Millions of records for the proofs of landing: four producers, mixed among their neighbours, some repeated.

Each record has a number: 0, 1, 2, … Both its id and its value contain the number, so a reader of the table needs no
list of what was published.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

__all__ = ["PARTITIONS", "Numbers", "mixed", "numbers_of", "publish"]

PARTITIONS = 6
_PRODUCERS = ("abcdefghij234", "klmnopqrst567", "uvwxyzabcd234", "efghijklmn567")
_EPOCHS = 2_000  # of a producer, at most: some 60 million records
_LENGTHS = [random.Random(f"epoch {epoch}").randrange(500, 60_000) for epoch in range(_EPOCHS)]
_STARTS = np.cumsum([0, *_LENGTHS])  # the records of all epochs before, the same for each producer
_FIRST = _STARTS.tolist()
_NEIGHBOURS = 50_000  # records in any order: more disorder than workers and partitions make
_BATCH_BYTES = 500_000
_IN_FLIGHT = 32  # batches
_FILL = b"." * 100

Numbers = npt.NDArray[np.int64]


def _record_id(number: int) -> str:
    """Return the id of a record: the producers take turns, and each starts again now and then."""
    place, turn = divmod(number, len(_PRODUCERS))
    epoch = bisect_right(_FIRST, place)
    return f"{_PRODUCERS[turn]}/{epoch}/{place - _FIRST[epoch - 1] + 1}"


def numbers_of(producers: npt.NDArray[np.str_], epochs: Numbers, sequences: Numbers) -> Numbers:
    """Return the numbers of many ids; -1: an id that `mixed` does not use."""
    turns = np.full(len(producers), -1, np.int64)
    for turn, producer in enumerate(_PRODUCERS):
        turns[producers == producer] = turn
    known = np.clip(epochs, 1, _EPOCHS)
    numbers = (_STARTS[known - 1] + sequences - 1) * len(_PRODUCERS) + turns
    too_far = sequences > _STARTS[known] - _STARTS[known - 1]
    unknown = (turns < 0) | (epochs != known) | (sequences < 1) | too_far
    return np.where(unknown, -1, numbers)


def mixed(seed: int, count: int, repeats: float) -> Iterator[tuple[int, int]]:
    """Yield (partition, number): each number once, and this share of them again, anywhere later."""
    rng = random.Random(seed)
    for first in range(0, count, _NEIGHBOURS):
        beyond = min(first + _NEIGHBOURS, count)
        numbers = list(range(first, beyond))
        numbers += [rng.randrange(beyond) for _ in range(round(repeats * len(numbers)))]
        rng.shuffle(numbers)
        yield from ((rng.randrange(PARTITIONS), number) for number in numbers)


async def publish(bootstrap_servers: str, topic: str, rows: Iterable[tuple[int, int]]) -> int:
    """Publish the rows with the headers of the library, by aiokafka alone; return their count."""
    count = 0
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, max_batch_size=_BATCH_BYTES) as producer:
        builders: dict[int, BatchBuilder] = {}
        in_flight: set[asyncio.Future[object]] = set()

        async def send(partition: int) -> None:
            nonlocal in_flight
            in_flight.add(await producer.send_batch(builders.pop(partition), topic, partition=partition))
            if len(in_flight) >= _IN_FLIGHT:
                done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()

        for partition, number in rows:
            count += 1
            if partition in builders and not _add(builders[partition], number):
                await send(partition)
            if partition not in builders:
                builders[partition] = producer.create_batch()
                assert _add(builders[partition], number)
        for partition in list(builders):
            await send(partition)
        await asyncio.gather(*in_flight)
    return count


def _add(builder: BatchBuilder, number: int) -> bool:
    """Add a record to a batch; return whether there was room."""
    headers = [("aiorecover-id", _record_id(number).encode())]
    added = builder.append(timestamp=None, key=None, value=b"%d%b" % (number, _FILL), headers=headers)
    return added is not None

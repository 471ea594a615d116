"""Records by the million for the proofs of landing: of four producers, mixed among their neighbours, some repeated.

A record is known by its number: 0, 1, 2, … up to how many there are. Its id says which number it is, and so does its
value, so that whoever finds it need not ask anybody what should be there.
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
_EPOCHS = 2_000  # of a producer, at most; some 60 million records
_LENGTHS = [random.Random(f"epoch {epoch}").randrange(500, 60_000) for epoch in range(_EPOCHS)]
_STARTS = np.cumsum([0, *_LENGTHS])  # how many records its epochs before have, of every producer alike
_FIRST = _STARTS.tolist()
_NEIGHBOURS = 50_000  # records that come in any order: what several workers and partitions do, and more
_BATCH_BYTES = 500_000
_UNDER_WAY = 32  # batches at a time
_FILL = b"." * 100

Numbers = npt.NDArray[np.int64]


def _record_id(number: int) -> str:
    """Return the id of a record: the producers take turns, and each starts again now and then."""
    place, turn = divmod(number, len(_PRODUCERS))
    epoch = bisect_right(_FIRST, place)
    return f"{_PRODUCERS[turn]}/{epoch}/{place - _FIRST[epoch - 1] + 1}"


def numbers_of(producers: npt.NDArray[np.str_], epochs: Numbers, sequences: Numbers) -> Numbers:
    """The numbers of many ids; -1: it is none of ours."""
    turns = np.full(len(producers), -1, np.int64)
    for turn, producer in enumerate(_PRODUCERS):
        turns[producers == producer] = turn
    known = np.clip(epochs, 1, _EPOCHS)
    numbers = (_STARTS[known - 1] + sequences - 1) * len(_PRODUCERS) + turns
    too_far = sequences > _STARTS[known] - _STARTS[known - 1]
    strange = (turns < 0) | (epochs != known) | (sequences < 1) | too_far
    return np.where(strange, -1, numbers)


def mixed(seed: int, count: int, repeats: float) -> Iterator[tuple[int, int]]:
    """Yield (partition, number), each number once, and a share of them again, at any later place."""
    rng = random.Random(seed)
    for first in range(0, count, _NEIGHBOURS):
        beyond = min(first + _NEIGHBOURS, count)
        numbers = list(range(first, beyond))
        numbers += [rng.randrange(beyond) for _ in range(round(repeats * len(numbers)))]
        rng.shuffle(numbers)
        yield from ((rng.randrange(PARTITIONS), number) for number in numbers)


async def publish(bootstrap_servers: str, topic: str, rows: Iterable[tuple[int, int]]) -> int:
    """Publish them as the library would, and with aiokafka alone; how many these were."""
    count = 0
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, max_batch_size=_BATCH_BYTES) as producer:
        builders: dict[int, BatchBuilder] = {}
        under_way: set[asyncio.Future[object]] = set()

        async def send(partition: int) -> None:
            nonlocal under_way
            under_way.add(await producer.send_batch(builders.pop(partition), topic, partition=partition))
            if len(under_way) >= _UNDER_WAY:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()

        for partition, number in rows:
            count += 1
            if partition in builders and not _fits(builders[partition], number):
                await send(partition)
            if partition not in builders:
                builders[partition] = producer.create_batch()
                assert _fits(builders[partition], number)
        for partition in list(builders):
            await send(partition)
        await asyncio.gather(*under_way)
    return count


def _fits(builder: BatchBuilder, number: int) -> bool:
    """Put a record into a batch, if there is room."""
    headers = [("aiorecover-id", _record_id(number).encode())]
    added = builder.append(timestamp=None, key=None, value=b"%d%b" % (number, _FILL), headers=headers)
    return added is not None

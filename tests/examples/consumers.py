"""Shared by the tests of the examples' consumers: a topic with repeats, and a consumer in its own process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from aiokafka import AIOKafkaProducer

from tests.support.broker import Cluster
from tests.support.example import EXAMPLES
from tests.support.signals import handles

__all__ = ["WITHIN_S", "Consumer", "environment", "repeated", "sell", "sell_in_transactions", "until_true"]

REPOSITORY = Path(__file__).parents[2]
WITHIN_S = 60.0


def environment(wal_dir: Path, kafka: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "WAL_DIR": str(wal_dir), "KAFKA": kafka}


def repeated(records: list[tuple[int, int]], producer: str = "abcdefghij234") -> list[tuple[str, int]]:
    """Ids and counts as a producer that died sends them: the last of each hundred stand there twice."""
    sent = [(f"{producer}/1/{sequence}", count) for sequence, count in records]
    return [
        one
        for begin in range(0, len(sent), 100)
        for one in [*sent[begin : begin + 100], *sent[begin + 60 : begin + 100]]
    ]


async def sell(kafka: Cluster, name: str, first: int, end: int) -> int:
    """An order for each number, of an item of its own, so that each is found again; how many records that are."""
    orders = repeated([(number, number) for number in range(first, end)])
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for identity, count in orders:
            order = json.dumps({"item": f"tea {count}", "count": count}).encode()
            await producer.send(name, order, key=b"%d" % count, headers=[("aiorecover-id", identity.encode())])
        await producer.flush()
    return len(orders)


async def sell_in_transactions(kafka: Cluster, name: str, *transactions: tuple[range, bool]) -> None:
    """An order without an id for each number of a transaction; and whether that is committed, or aborted."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name) as producer:
        for numbers, commits in transactions:
            await producer.begin_transaction()
            for number in numbers:
                order = {"id": number, "item": f"tea {number}", "price": 1, "count": number}
                await producer.send(name, json.dumps(order).encode(), key=b"%d" % number)
            await producer.flush()  # or what is aborted would never be sent
            await (producer.commit_transaction() if commits else producer.abort_transaction())


class Consumer:
    """A consumer of the examples in a process of its own, which ends with the block."""

    def __init__(
        self,
        name: str,
        environ: dict[str, str],
        out: Path,
        program: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """``program``: what runs it, and is given its path; none: Python itself. ``arguments``: its own."""
        self._name, self._environ, self._out, self._program = name, environ, out, program
        self._arguments = arguments

    def __enter__(self) -> Self:
        with self._out.open("ab") as out:
            command = [sys.executable, *self._program, str(EXAMPLES / f"{self._name}.py"), *self._arguments]
            self._process = subprocess.Popen(command, env=self._environ, stdout=out)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def end_well(self) -> None:
        """Not before it can be asked to: another one may have done all the work while it was started."""
        until_true(lambda: handles(self._process.pid, signal.SIGTERM))
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(WITHIN_S) == 0

    def wait_killed(self) -> None:
        """By its own hand."""
        assert self._process.wait(WITHIN_S) == -signal.SIGKILL


def until_true(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)

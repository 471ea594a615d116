"""All brokers are gone for a while under steady load, and come back: what that costs the publishing process."""

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Verdict, judge, read_topic

BURSTS = 20  # a second
KEYS = 50
BEFORE_S = 3.0  # what publishing takes in these seconds is what it takes
SETTLED_S = 1.0  # after the start, and after the brokers have gone
DELIVERED_WITHIN_MS = 600_000
MEMORY = 16 << 20  # bytes of growth
RESUMED_S = 2.0  # one second is promised; the brokers have just started on the same processors
SLOWER = 2.0  # of the median of `publish`


@dataclass(frozen=True)
class Outage:
    """The end of all records, and the cost of the outage."""

    verdict: Verdict
    seconds: float
    grown: int
    """Bytes of anonymous memory at the most, above what there was before."""
    resumed_s: float
    """From the moment when the brokers serve again to the first acknowledgement."""
    slower: float
    """Median of `publish` in the outage, by that before."""

    def wrong(self) -> list[str]:
        """Say which promises were broken."""
        found = {
            f"records: {self.verdict}": not self.verdict.ok or self.verdict.repeated > 0,
            f"memory grew by {self.grown} bytes": self.grown > MEMORY,
            f"delivery resumed after {self.resumed_s:.1f} s": self.resumed_s > RESUMED_S,
            f"publish was {self.slower:.1f} times as slow": self.slower > SLOWER,
        }
        return [what for what, is_wrong in found.items() if is_wrong]


async def run_outage(cluster: Cluster, topic: str, directory: Path, *, seconds: float, rate: int) -> Outage:
    """Publish ``rate`` records a second, before, throughout and after an outage of ``seconds``."""
    async with RecoverableProducer(directory, bootstrap_servers=cluster.bootstrap_servers) as producer:
        load = _Load(producer, topic, rate)
        publishing = asyncio.create_task(load.run())
        await asyncio.sleep(SETTLED_S)
        quiet = await load.watch(BEFORE_S)
        memory = _anonymous()
        for node in cluster.nodes:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(SETTLED_S)
        dark = await load.watch(max(0.0, seconds - SETTLED_S))
        for node in cluster.nodes:
            await asyncio.to_thread(node.start)
        delivered = producer.statistics().delivered
        await asyncio.to_thread(cluster.wait_ready)
        served = time.monotonic()
        while producer.statistics().delivered == delivered:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)
        resumed = time.monotonic() - served
        publishing.cancel()
        await producer.flush(DELIVERED_WITHIN_MS)
        accepted = load.accepted()
    verdict = judge(accepted, await read_topic(cluster.bootstrap_servers, topic, timeout_s=600))
    return Outage(verdict, seconds, load.most - memory, resumed, dark / quiet)


class _Load:
    """Records, none of which is kept here: the memory is the producer's."""

    def __init__(self, producer: RecoverableProducer, topic: str, rate: int) -> None:
        self.most = 0
        self._producer, self._topic, self._burst = producer, topic, rate // BURSTS
        self._number = 0
        self._took: list[int] = []

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            for _ in range(self._burst):
                self._number += 1
                key, value = _record(self._number)
                began = time.perf_counter_ns()
                await self._producer.publish(self._topic, value, key=key)
                if not self._number % 16:
                    self._took.append(time.perf_counter_ns() - began)
            due += 1 / BURSTS
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def watch(self, seconds: float) -> float:
        """Return the median of `publish` in so many seconds, in ns."""
        self._took.clear()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(0.2)
            self.most = max(self.most, _anonymous())
        return statistics.median(self._took)

    def accepted(self) -> list[Accepted]:
        producer = f"{self._producer.producer_id}/{self._producer.epoch}"
        count = self._producer.statistics().accepted
        return [Accepted(f"{producer}/{number}", *_record(number)) for number in range(1, count + 1)]


def _record(number: int) -> tuple[bytes, bytes]:
    return b"key-%d" % (number % KEYS), b"%d:" % number + b"x" * (number % 200)


def _anonymous() -> int:
    """Return the bytes of memory that belong to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")

"""One store in a process of its own: warmed up, measured without and with a clock around each call, killed, read back.

Records/s and latencies are measured one after the other, so that the clock's own cost is in the latencies only.
"""

import asyncio
import gc
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import machine
from benchmarks.child import Child, call, stopwatch, tell
from benchmarks.figures import quantiles
from benchmarks.ring import payloads
from benchmarks.ring.contenders import contenders
from benchmarks.setting import Setting

WARM_UP_S = 0.1
MAX_BYTES = 256 * 1024 * 1024  # of each of the two measurements: it stays in the page cache everywhere


def one(setting: Setting, level: str, name: str, size: int, seconds: float) -> dict[str, Any]:
    """The figures of one contender, over ``seconds`` without and ``seconds`` with the clock.

    Raises:
        RuntimeError: it failed, or what it said to have stored was not found.

    """
    named = {"level": level, "name": name, "size": size}
    with setting.wal_dir() as directory:
        with Child(measure, directory=directory, seconds=seconds, **named) as child:
            figures = child.read()
        call(find, directory=directory, stored=figures["stored"], settled=figures["settled"], **named)
    return figures


# -- in processes of their own -----------------------------------------------------------------------------------------


async def measure(level: str, name: str, size: int, directory: str, seconds: float) -> None:
    """Tell the figures, and wait to be killed: what was stored has to survive that."""
    store = contenders(level)[name].make(directory)
    chunks, times = payloads.chunks(size), array("q")
    stored = await _store_for(store.store, chunks, WARM_UP_S, size)
    gc.collect()
    with stopwatch() as watch:
        untimed = await _store_for(store.store, chunks, seconds, size)
    gc.collect()
    timed = await _store_for(lambda chunk: store.store_timed(chunk, times), chunks, seconds, size)
    tell(
        stored=stored + untimed + timed,
        settled=store.settled,
        records_s=untimed / watch.elapsed,
        cpu_us=watch.cpu / untimed * 1e6,
        clock_ns=machine.clock_ns(),
        **quantiles(times),
    )
    await asyncio.Event().wait()


async def _store_for(
    store: Callable[[list[bytes]], Any], chunks: Iterator[list[bytes]], seconds: float, size: int
) -> int:
    """Store until the time is over; how many records."""
    count, most = 0, MAX_BYTES // size
    until = time.perf_counter() + seconds
    for chunk in chunks:
        await store(chunk)
        count += len(chunk)
        if count >= most or time.perf_counter() >= until:
            break
    return count


def find(level: str, name: str, size: int, directory: str, stored: int, settled: int) -> dict[str, Any]:
    """Read everything back.

    Raises:
        AssertionError: something else than what was stored.

    """
    contender = contenders(level)[name]
    payloads.check(contender.back(directory), size, stored, settled, ordered=contender.ordered)
    return {"found": stored}

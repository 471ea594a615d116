"""Waiting for what a running producer does by itself, looked at from outside."""

import asyncio
from collections.abc import Callable

__all__ = ["until"]

LOOK = 0.005  # seconds between two looks
LIMIT = 20.0  # seconds, where a test names no other: what is waited for takes milliseconds, on a busy machine seconds


async def until(true: Callable[[], bool], limit: float = LIMIT) -> None:
    """Return once ``true`` is.

    Raises:
        TimeoutError: it was not within ``limit`` seconds.

    """
    async with asyncio.timeout(limit):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK)

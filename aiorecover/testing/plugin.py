"""Fixtures for pytest, which finds them by itself where aiorecover is installed.

======================  ============================================================================================
`mock_kafka`            a `MockCluster`, empty and reachable
`recoverable_producer`  makes producers for it: ``async with recoverable_producer() as producer``
`crashing_process`      starts a program that the test kills and starts again: a `CrashingProcess`
`power_cut`             images of a `MemoryDisk` whose power fails now, each with another part of what was in flight
======================  ============================================================================================

They need no plugin for asyncio, and go with each.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Callable, Iterator, Mapping

    from aiorecover import RecoverableProducer
    from aiorecover.testing import CrashingProcess, MemoryDisk, MockCluster

__all__ = ["crashing_process", "mock_kafka", "power_cut", "recoverable_producer"]

# A session imports only what its tests use.


@pytest.fixture
def mock_kafka() -> Iterator[MockCluster]:
    """A Kafka inside this process, without Java or Docker: see `MockCluster`."""
    from aiorecover.testing import MockCluster  # noqa: PLC0415

    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def recoverable_producer(mock_kafka: MockCluster, tmp_path: pathlib.Path) -> Callable[..., RecoverableProducer]:
    """Make a producer for `mock_kafka`, to be entered: ``recoverable_producer(wal_dir=None, **options)``.

    Without ``wal_dir``, a path or a `MemoryDisk`, all of a test share ``tmp_path / "wal"``: after one has ended the
    next one takes its directory, and delivers what it has left.
    """
    from aiorecover import RecoverableProducer  # noqa: PLC0415

    def make(wal_dir: str | os.PathLike[str] | None = None, **options: Any) -> RecoverableProducer:
        where = tmp_path / "wal" if wal_dir is None else wal_dir
        return RecoverableProducer(where, bootstrap_servers=mock_kafka.bootstrap_servers, **options)

    return make


@pytest.fixture
def crashing_process() -> Iterator[Callable[..., CrashingProcess]]:
    """Start a program: ``crashing_process("service.py", "argument", env={...})``; it dies with the test."""
    from aiorecover.testing import CrashingProcess  # noqa: PLC0415

    with ExitStack() as processes:

        def start(*command: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> CrashingProcess:
            return processes.enter_context(CrashingProcess(*command, env=env))

        yield start


@pytest.fixture
def power_cut() -> Callable[..., list[MemoryDisk]]:
    """Return what the next start may find: ``power_cut(disk, images=5)``, the same images for the same writes."""

    def cut(disk: MemoryDisk, images: int = 5) -> list[MemoryDisk]:
        return [disk.after_power_cut(seed) for seed in range(images)]

    return cut

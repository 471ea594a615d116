"""With `asyncio.eager_task_factory` (Python 3.12 and newer) a producer works as with lazy tasks: it never hangs."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import KafkaCluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import perfect

ROOT = Path(__file__).parents[2]
NEEDED = ("aiokafka>=0.14,<0.15", "cramjam", "msgspec", "aiofiles")
ENDS_WITHIN_S = 90.0


def interpreters() -> Iterator[Path]:
    """Return the interpreters of 3.12 and 3.13 on the PATH, and those that pyenv has installed."""
    for version in ("3.13", "3.12"):
        found = shutil.which(f"python{version}")
        pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
        yield from (Path(one) for one in (found, *pyenv) if one is not None)


def works(python: Path) -> bool:
    """Whether it runs, and can make an environment: pyenv leaves scripts on the PATH that do neither."""
    tried = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has eager tasks and what the package needs; ours, with lazy ones, where there is none."""
    if sys.version_info >= (3, 12):
        return sys.executable
    found = next(filter(works, interpreters()), None)
    if found is None:
        return sys.executable
    place = ROOT / ".cache" / found.name
    if not (place / "ready").exists():
        subprocess.run([found, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", *NEEDED], check=True)
        (place / "ready").touch()
    return str(place / "bin" / "python")


@pytest.mark.asyncio
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_outages_a_frozen_broker_and_a_stop_that_is_cut_off_lose_and_repeat_nothing(
    kafka: KafkaCluster, topic: TopicFactory, tmp_path: Path, python: str, guarantee: str
) -> None:
    name, node = topic(kafka), kafka.nodes[0]
    command = [
        python,
        str(Path(__file__).with_name("eager.py")),
        str(tmp_path),
        kafka.bootstrap_servers,
        name,
        guarantee,
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    accepted: list[Accepted] = []
    faults = [node.kill, node.start, node.pause, node.resume]
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            while (line := (await process.stdout.readline()).decode().split()) != ["delivered"]:
                if line == ["published"]:
                    await asyncio.to_thread(faults.pop(0))
                    await asyncio.sleep(1.0)
                    process.stdin.write(b"\n")
                else:
                    record_id, key, value = line
                    accepted.append(Accepted(record_id, key.encode(), value.encode()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await asyncio.to_thread(kafka.heal)
    found = await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed")
    perfect(judge(accepted, found))
    assert len(accepted) == 2000

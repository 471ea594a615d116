"""The fixtures for pytest, used as the page says, by a pytest of its own; and what they say of mistakes."""

import asyncio
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from aiorecover import RecoverableProducer
from aiorecover.testing import CrashingProcess, MemoryDisk, MockCluster, read_topic
from tests.support.eventually import until
from tests.test_readme import SNIPPETS

ENDS_S = 60

DISK_TEST = """\
import asyncio
import pytest
from aiorecover.testing import MemoryDisk, read_topic

@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_power_cut(mock_kafka, recoverable_producer, power_cut, fsync):
    async def take(disk):
        mock_kafka.broker_down()
        async with recoverable_producer(disk, fsync=fsync, stop_timeout_ms=0) as producer:
            for number in range(20):
                await producer.publish("orders", b"%d" % number)
            images = power_cut(disk)
        mock_kafka.broker_up()
        return images

    async def deliver(left):
        async with recoverable_producer(left) as producer:
            await producer.flush(timeout_ms=20_000)

    for image in asyncio.run(take(MemoryDisk())):
        before = len(read_topic(mock_kafka.bootstrap_servers, "orders"))
        asyncio.run(deliver(image))
        assert len(read_topic(mock_kafka.bootstrap_servers, "orders")) == before + 20
"""


def ran(folder: Path) -> str:
    """Run pytest there, as a user has it: with nothing of this repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--rootdir", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    return done.stdout + done.stderr


def write_page(folder: Path) -> None:
    """Write the files of the page, under the names in their first lines."""
    for name, text in SNIPPETS.items():
        file = re.match(r"# (\S+\.py)\n", text)
        if name.startswith("testing.md:") and file is not None:
            (folder / file[1]).write_text(text)


def test_the_test_of_the_page_passes_and_what_loses_records_is_caught(tmp_path: Path) -> None:
    write_page(tmp_path)
    test, service = (tmp_path / "test_service.py").read_text(), (tmp_path / "service.py").read_text()
    (tmp_path / "test_losing.py").write_text(test.replace('"service.py"', '"losing.py"'))
    # A directory of each life's own, as in a container without a volume.
    (tmp_path / "losing.py").write_text(service.replace('environ["WAL_DIR"]', 'environ["WAL_DIR"] + str(os.getpid())'))
    (tmp_path / "test_disk.py").write_text(DISK_TEST)
    said = ran(tmp_path)
    assert "2 failed, 2 passed" in said, said
    assert "FAILED test_losing.py::test_kill_9_in_an_outage_loses_no_order - Assert" in said
    assert "FAILED test_disk.py::test_power_cut[interval] - Assert" in said


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], CrashingProcess]:
    def make(text: str) -> CrashingProcess:
        path = tmp_path / "program.py"
        path.write_text(text)
        return CrashingProcess(path)

    return make


def test_a_program_that_does_not_what_the_test_waits_for_is_named(program: Callable[[str], CrashingProcess]) -> None:
    with program("import sys; print('one'); sys.exit(3)") as ending:
        assert ending.line() == "one"
        with pytest.raises(RuntimeError, match=r"has ended: its errors say why status=3 command=.*program\.py"):
            ending.line()
        with pytest.raises(RuntimeError, match="status=3"):
            ending.end()
        with pytest.raises(RuntimeError, match="does not run: start it"):
            ending.kill()
    with program("import time; print('up', flush=True); time.sleep(60)") as simple:
        assert simple.line() == "up"
        with pytest.raises(RuntimeError, match=r"does not handle SIGTERM: have it do so, or kill\(\) it"):
            simple.end()
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.write(1, b'up\\nha'); time.sleep(60)"
    with program(deaf) as stubborn:
        assert stubborn.line() == "up"
        with pytest.raises(RuntimeError, match="runs already"):
            stubborn.start()
        with pytest.raises(TimeoutError, match="no line within 10 ms"):
            stubborn.line(10)
        with pytest.raises(RuntimeError, match="status=none within 10 ms"):
            stubborn.end(10)
        stubborn.start()
        stubborn.line()
        assert stubborn.kill() == []  # a line that it was in the middle of does not count


def test_processes_that_a_program_has_started_die_with_it(program: Callable[[str], CrashingProcess]) -> None:
    with program("import subprocess; print(subprocess.Popen(['sleep', '60']).pid); input()") as parent:
        child = int(parent.line())
    asyncio.run(until(lambda: not running(child)))


def running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def test_reading_where_kafka_is_away_is_an_error_and_leaves_nothing_open(capfd: pytest.CaptureFixture[str]) -> None:
    with MockCluster() as cluster:
        cluster.broker_down()
        with pytest.raises(KafkaConnectionError, match="Unable to bootstrap"):
            read_topic(cluster.bootstrap_servers, "orders")
    gc.collect()
    assert "Unclosed" not in capfd.readouterr().err


@pytest.mark.asyncio
async def test_a_topic_is_read_whole_and_in_order_also_beside_a_loop_that_runs(cluster: MockCluster) -> None:
    servers: Any = cluster.bootstrap_servers
    cluster.create_topic("orders", partitions=3)
    assert read_topic(servers, "orders") == []
    async with RecoverableProducer(MemoryDisk(), bootstrap_servers=servers) as producer:
        for number in range(3000):
            await producer.publish("orders", b"%d" % number, partition=number % 3)
        await producer.flush(timeout_ms=20_000)
    found = [int(record.value or b"") for record in await asyncio.to_thread(read_topic, servers, "orders")]
    assert found == [*range(0, 3000, 3), *range(1, 3000, 3), *range(2, 3000, 3)]

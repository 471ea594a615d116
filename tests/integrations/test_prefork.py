"""The recipes of docs/integrations.md for servers that fork, as files, under the real gunicorn and Celery."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from aiorecover.ring.inspect import look
from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.oracle import read_topic
from tests.support.ports import ReservedPorts
from tests.support.serving import owners
from tests.test_readme import SNIPPETS

TOPIC = "orders"
WITHIN_S = 60.0
WORKERS = 2

SITE = """\
import django.conf
from django.core.wsgi import get_wsgi_application
from django.urls import path

django.conf.settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="none")
import views

urlpatterns = [path("orders", views.take)]
application = get_wsgi_application()
"""

# Tasks come from files, so that no other server is needed.
CELERY = """\
from tasks import app

app.conf.broker_url = "filesystem://"
app.conf.broker_transport_options = {
    "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control", "polling_interval": 0.05
}
app.conf.worker_hijack_root_logger = False
"""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=3)
        yield cluster


@pytest.fixture
def folder(tmp_path: Path, cluster: MockCluster) -> Path:
    """The files of the page, under the names in their first lines."""
    for name, text in SNIPPETS.items():
        file = re.match(r"# (\S+\.py)\n", text)
        if name.startswith("integrations.md:") and file is not None:
            (tmp_path / file[1]).write_text(text.replace("localhost:9092", cluster.bootstrap_servers))
    (tmp_path / "site_of_orders.py").write_text(SITE)
    (tmp_path / "from_files.py").write_text(CELERY)
    for queue in ("queue", "control"):
        (tmp_path / queue).mkdir()
    return tmp_path


@contextmanager
def running(folder: Path, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The server, until it is ended."""
    server = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, start_new_session=True)
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait(true: Callable[[], object], what: str) -> None:
    async def look_once() -> bool | None:
        return bool(true()) or None

    admin.run(admin.until(look_once, timeout_s=WITHIN_S, what=what))


def waiting(folder: Path) -> int:
    return sum(look(path).records for path in (folder / "wal").iterdir())


def ids(cluster: MockCluster) -> list[str]:
    return sorted(record.record_id or "" for record in admin.run(read_topic(cluster.bootstrap_servers, TOPIC)))


def test_django_under_gunicorn_accepts_in_an_outage_and_a_killed_worker_loses_nothing(
    cluster: MockCluster, folder: Path
) -> None:
    cluster.broker_down()
    ports = ReservedPorts(1)
    (port,) = ports.numbers
    command = ("gunicorn", "--preload", "--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}", "--log-level=error")
    with running(folder, *command, "site_of_orders:application") as server:
        wait(lambda: len(owners(folder / "wal")) == WORKERS, "the workers have no directories")
        order = partial(httpx.post, f"http://127.0.0.1:{port}/orders", content=b"tea")
        accepted = [order().json()["accepted"] for _ in range(20)]
        before = set(owners(folder / "wal").values())
        os.kill(min(before), signal.SIGKILL)
        wait(
            lambda: len({*owners(folder / "wal").values()} - before) == 1, "no worker replaces the one that was killed"
        )
        accepted += [order().json()["accepted"] for _ in range(20)]
        assert waiting(folder) == len(accepted)
        cluster.broker_up()
        server.terminate()
        assert server.wait(WITHIN_S) == 0
    ports.release()
    assert waiting(folder) == 0
    assert ids(cluster) == sorted(accepted)


def test_tasks_of_celery_publish_and_its_processes_come_and_go(cluster: MockCluster, folder: Path) -> None:
    tasks = 12
    enqueue = f"from from_files import app\nfor n in range({tasks}): app.send_task('tasks.take', [dict(id=n)])"
    subprocess.run([sys.executable, "-c", enqueue], cwd=folder, check=True, timeout=WITHIN_S)
    options = ("--pool=prefork", f"--concurrency={WORKERS}", "--max-tasks-per-child=4", "--loglevel=ERROR")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    with running(folder, "celery", "--quiet", "-A", "from_files", "worker", *options, *quiet) as server:
        wait(lambda: server.poll() is not None or len(ids(cluster)) == tasks, "not all tasks have published")
        server.terminate()
        assert server.wait(WITHIN_S) == 0
    assert waiting(folder) == 0
    found = admin.run(read_topic(cluster.bootstrap_servers, TOPIC))
    assert sorted(record.value or b"" for record in found) == sorted(b'{"id":%d}' % number for number in range(tasks))
    assert len({(record.record_id or "").rpartition("/")[0] for record in found}) >= tasks / 4  # lives of processes

"""The snippets of docs/services.md, run against a cluster."""

from pathlib import Path
from typing import Any

import litestar.testing
import pytest
from fastapi.testclient import TestClient

from aiorecover.integrations.settings import ProducerSettings
from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.oracle import read_topic
from tests.test_readme import run


@pytest.mark.parametrize(("snippet", "client"), [(0, TestClient), (1, TestClient), (2, litestar.testing.TestClient)])
def test_a_service_of_the_page_takes_orders_and_delivers_them(
    snippet: int, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        _, names = run(f"services.md:{snippet}", cluster)
        with client(names["app"]) as service:
            answer = service.post("/orders", json={"item": "tea"})
            assert answer.status_code == 202
            assert service.get("/ready").status_code == 200
            if snippet == 0:
                assert service.get("/dead-letters").status_code == 403
                assert service.get("/dead-letters", headers={"token": "correct horse"}).text == ""
        found = admin.run(read_topic(cluster.bootstrap_servers, "orders"))
    assert found[-1].record_id == answer.json()["accepted"]
    assert len(found) == (2 if snippet == 0 else 1)


def test_the_metrics_of_the_page_are_scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MockCluster() as cluster:
        _, names = run("services.md:3", cluster)
        for _ in range(2):  # also when the service is started again in this process
            with TestClient(names["app"]) as service:
                text = service.get("/metrics/").text
            assert text.count(f'aiorecover_records_accepted_total{{wal_path="{tmp_path / "wal" / "0"}"}} 0.0') == 1


@pytest.mark.asyncio
async def test_the_settings_of_the_page_come_from_variables_and_mounted_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "AIORECOVER_SASL_PLAIN_PASSWORD").write_text("battery\n")
    assert ProducerSettings(wal_dir="wal", bootstrap_servers="a", _secrets_dir=tmp_path).options() == {
        "wal_dir": Path("wal"),
        "bootstrap_servers": "a",
        "sasl_plain_password": "battery",
    }
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        monkeypatch.setenv("AIORECOVER_WAL_DIR", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("AIORECOVER_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
        coroutine, names = run("services.md:4", cluster)
        await coroutine
        assert names["producer"].wal_path == tmp_path / "elsewhere" / "0"
        assert names["producer"].statistics().delivered == 1

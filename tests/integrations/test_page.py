"""The snippets of docs/services.md, run against a cluster."""

from pathlib import Path
from typing import Any

import litestar.testing
import pytest
from fastapi.testclient import TestClient

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

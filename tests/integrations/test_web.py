"""FastAPI, Starlette and Litestar: what a service does with Kafka away, the ring full, the disk broken."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import litestar
import litestar.testing
import pytest
from fastapi import FastAPI, Header, HTTPException, Request, WebSocket
from fastapi.testclient import TestClient
from litestar.di import Provide
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from aiorecover import RecoverError
from aiorecover.integrations import fastapi as for_fastapi
from aiorecover.integrations import litestar as for_litestar
from aiorecover.integrations import starlette as for_starlette
from aiorecover.integrations.web import Lifespan, lifespan
from aiorecover.testing import ApiKey, MemoryDisk, MockCluster
from tests.support import admin
from tests.support.oracle import read_topic

TOPIC = "orders"
RECORD_LIST_TOO_LARGE = 18
MIB = 1 << 20


def fastapi_app(serves: Lifespan) -> FastAPI:
    app = FastAPI(lifespan=serves, exception_handlers=for_fastapi.exception_handlers)
    app.include_router(for_fastapi.probes)

    @app.post("/orders")
    async def take(request: Request, producer: for_fastapi.ProducerDep) -> dict[str, str]:
        return {"accepted": (await producer.publish(TOPIC, await request.body())).record_id}

    return app


def starlette_app(serves: Lifespan) -> Starlette:
    async def take(request: StarletteRequest) -> JSONResponse:
        producer = await for_starlette.get_producer(request)
        return JSONResponse({"accepted": (await producer.publish(TOPIC, await request.body())).record_id})

    routes = [*for_starlette.probes, Route("/orders", take, methods=["POST"])]
    return Starlette(lifespan=serves, exception_handlers=for_starlette.exception_handlers, routes=routes)


def litestar_app(serves: Lifespan) -> litestar.Litestar:
    @litestar.post("/orders", status_code=200)
    async def take(request: litestar.Request[Any, Any, Any], producer: for_litestar.ProducerDep) -> dict[str, str]:
        return {"accepted": (await producer.publish(TOPIC, await request.body())).record_id}

    return litestar.Litestar(
        [take, *for_litestar.probes],
        lifespan=[serves],
        dependencies={"producer": Provide(for_litestar.get_producer)},
        exception_handlers=for_litestar.exception_handlers,
    )


Serve = Callable[[Lifespan], AbstractContextManager[Any]]
FRAMEWORKS: dict[str, Serve] = {
    "fastapi": lambda serves: TestClient(fastapi_app(serves), raise_server_exceptions=False),
    "starlette": lambda serves: TestClient(starlette_app(serves), raise_server_exceptions=False),
    "litestar": lambda serves: litestar.testing.TestClient(litestar_app(serves), raise_server_exceptions=False),
}


@pytest.fixture(params=FRAMEWORKS)
def serve(request: pytest.FixtureRequest) -> Serve:
    """The framework's own test client of a service with this lifespan, not yet entered."""
    return FRAMEWORKS[request.param]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        yield cluster


def wait(client: Any, path: str, code: int, **payload: object) -> None:
    """Until a probe answers so."""

    async def answers() -> bool | None:
        answer = client.get(path)
        return (answer.status_code == code and answer.json().items() >= payload.items()) or None

    admin.run(admin.until(answers, timeout_s=20.0, what=f"{path} does not answer {code} {payload}"))


def test_a_service_starts_without_kafka_accepts_and_delivers_when_it_is_back(
    serve: Serve, cluster: MockCluster, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[None]:
        await app.state.producer.publish(TOPIC, b"first")
        yield
        await app.state.producer.publish(TOPIC, b"last")

    cluster.broker_down()
    with serve(lifespan(tmp_path, bootstrap_servers=cluster.bootstrap_servers, wraps=own)) as client:
        accepted = [client.post("/orders", content=b"%d" % number).json()["accepted"] for number in range(9)]
        assert client.get("/live").json() == {"live": True, "state": "connecting"}
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["delivering"], ready.json()["pending"]) == (200, False, 10)
        assert ready.json()["oldest_age_seconds"] is not None
        cluster.broker_up()
        wait(client, "/ready", 200, delivering=True, pending=0, oldest_age_seconds=None)
    found = admin.run(read_topic(cluster.bootstrap_servers, TOPIC))
    assert [record.value for record in found] == [b"first", *(b"%d" % number for number in range(9)), b"last"]
    assert [record.record_id for record in found[1:-1]] == accepted


def test_a_full_ring_answers_try_again_and_is_not_ready_until_kafka_has_made_room(
    serve: Serve, cluster: MockCluster, tmp_path: Path
) -> None:
    cluster.broker_down()
    options: Any = {"wal_max_bytes": 8 * MIB}
    with serve(lifespan(tmp_path, bootstrap_servers=cluster.bootstrap_servers, **options)) as client:
        accepted, size = 0, MIB - 1000
        while (full := client.get("/ready")).status_code == 200:
            answer = client.post("/orders", content=bytes(size))
            if answer.status_code == 200:
                accepted += 1
            else:
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
                assert str(tmp_path) not in answer.text
                size = MIB >> 5  # smaller ones find room for a while where larger ones do not
        assert (full.status_code, full.json()["ready"], full.json()["full"]) == (503, False, True)
        assert full.json()["pending"] == accepted
        assert client.get("/live").status_code == 200
        too_large = client.post("/orders", content=bytes(MIB))
        assert (too_large.status_code, too_large.json()) == (413, {"detail": "the record is too large"})
        cluster.broker_up()
        wait(client, "/ready", 200, pending=0)
        assert client.post("/orders", content=b"small").status_code == 200


def test_only_a_broken_disk_asks_for_a_restart(serve: Serve, cluster: MockCluster) -> None:
    disk: Any = MemoryDisk()
    options: Any = {"fsync_interval_ms": 10, "stop_timeout_ms": 100}
    with serve(lifespan(disk, bootstrap_servers=cluster.bootstrap_servers, **options)) as client:
        assert client.get("/live").status_code == 200
        disk.failing = True
        client.post("/orders", content=b"one")
        wait(client, "/live", 503, live=False, state="failed")
        assert client.get("/ready").status_code == 503
        assert client.post("/orders", content=b"two").status_code == 500  # what the disk did with it is not known
        disk.failing = False


def test_websockets_have_the_producer_and_what_the_own_lifespan_yields(cluster: MockCluster, tmp_path: Path) -> None:
    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "hello"}

    app = fastapi_app(lifespan(tmp_path, bootstrap_servers=cluster.bootstrap_servers, wraps=own))

    @app.websocket("/orders")
    async def take(websocket: WebSocket, producer: for_fastapi.ProducerDep) -> None:
        await websocket.accept()
        await producer.publish(TOPIC, await websocket.receive_bytes())
        await websocket.send_text(websocket.state.greeting)

    with TestClient(app) as client, client.websocket_connect("/orders") as websocket:
        websocket.send_bytes(b"one")
        assert websocket.receive_text() == "hello"
    assert [record.value for record in admin.run(read_topic(cluster.bootstrap_servers, TOPIC))] == [b"one"]


def test_a_client_that_was_not_entered_is_told_so(tmp_path: Path) -> None:
    client = TestClient(fastapi_app(lifespan(tmp_path, bootstrap_servers="localhost:1")))
    with pytest.raises(RecoverError, match="in tests enter the client"):
        client.post("/orders", content=b"one")


def test_dead_letters_are_for_those_whom_the_dependency_lets_in(cluster: MockCluster, tmp_path: Path) -> None:
    async def admins_only(name: Annotated[str, Header()] = "") -> None:
        if name != "admin":
            raise HTTPException(403)

    app = fastapi_app(lifespan(tmp_path, bootstrap_servers=cluster.bootstrap_servers))
    admin_ = {"name": "admin"}
    cluster.push_partition_errors(TOPIC, 0, ApiKey.PRODUCE, *[RECORD_LIST_TOO_LARGE] * 2)
    with TestClient(app) as client:
        assert client.get("/dead-letters", headers=admin_).status_code == 404  # off by default
        app.include_router(for_fastapi.dead_letters_router(admins_only))
        ids = []
        for value in (b"one", b"two"):
            ids.append(client.post("/orders", content=value).json()["accepted"])
            wait(client, "/ready", 200, pending=0)
        for method, path in (("GET", ""), ("POST", "/requeue?record_id=all"), ("DELETE", "?record_id=all")):
            assert client.request(method, f"/dead-letters{path}").status_code == 403
        letters = [json.loads(line) for line in client.get("/dead-letters", headers=admin_).text.splitlines()]
        assert [(letter["record_id"], letter["topic"]) for letter in letters] == [(id_, TOPIC) for id_ in ids]
        assert len(client.get("/dead-letters?limit=1", headers=admin_).text.splitlines()) == 1

        def ask(method: str, path: str, record_id: str) -> tuple[int, Any]:
            answer = client.request(method, f"/dead-letters{path}", params={"record_id": record_id}, headers=admin_)
            return answer.status_code, answer.json()

        assert ask("DELETE", "", "nonsense")[0] == ask("POST", "/requeue", "nonsense")[0] == 422
        assert ask("DELETE", "", ids[0][:-1] + "9")[0] == 404
        assert client.delete("/dead-letters", headers=admin_).status_code == 422  # nothing is purged by mistake
        assert ask("DELETE", "", ids[0]) == (200, {"purged": 1})
        assert ask("POST", "/requeue", ids[1]) == (200, {"requeued": 1})
        assert ask("POST", "/requeue", "all") == (200, {"requeued": 0})
    found = admin.run(read_topic(cluster.bootstrap_servers, TOPIC))
    assert [record.value for record in found] == [b"two"]

"""A web service that publishes in its handlers, with FastAPI: ``uvicorn --app-dir examples web_service:app``.

``pip install 'aiorecover[fastapi,metrics]' uvicorn`` brings what it needs.
A request is answered as soon as its order is in the ring: Kafka may be down for hours, and no client waits. If the ring
is full, the answer is 503 with ``Retry-After``. On SIGTERM uvicorn ends the lifespan: the producer delivers what it can
in ``stop_timeout_ms``, and the rest after the next start. Workers share the directory (``--workers 4``); each answers
/metrics for itself. examples/ops runs it under Kubernetes, and beside Kafka, Prometheus and Grafana.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import make_asgi_app
from pydantic import BaseModel

from aiorecover.integrations.fastapi import ProducerDep, exception_handlers, lifespan, probes
from aiorecover.integrations.prometheus import watch


@asynccontextmanager
async def watched(app: FastAPI) -> AsyncIterator[None]:
    watch(app.state.producer)
    yield


class Order(BaseModel):
    id: int
    item: str
    count: int = 1
    price: int = 1


app = FastAPI(
    lifespan=lifespan(
        os.environ.get("WAL_DIR", "wal"),  # on a disk that outlives the process
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
        wraps=watched,
        instance=os.environ.get("INSTANCE"),  # None: the first number that is free
    ),
    exception_handlers=exception_handlers,
)
app.include_router(probes)  # /live and /ready
app.mount("/metrics", make_asgi_app())


@app.post("/orders", status_code=202)
async def take(order: Order, producer: ProducerDep) -> dict[str, str]:
    receipt = await producer.publish("orders", order, key=str(order.id))
    return {"accepted": receipt.record_id}

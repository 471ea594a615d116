"""A web service that publishes in its handlers, with FastAPI: ``uvicorn --app-dir examples web_service:app``.

A request is answered as soon as its order is in the ring: Kafka may be down for hours, and nobody waits. Where the ring
is full the answer is 503 with ``Retry-After``. On SIGTERM uvicorn ends the lifespan: what can be delivered in
``stop_timeout_ms`` is, the rest after the next start. Workers share the directory: ``--workers 4``.
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel

from aiorecover.integrations.fastapi import ProducerDep, exception_handlers, lifespan, probes


class Order(BaseModel):
    id: int
    item: str


app = FastAPI(
    lifespan=lifespan(
        os.environ.get("WAL_DIR", "wal"),  # on a disk that outlives the process
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
    ),
    exception_handlers=exception_handlers,
)
app.include_router(probes)  # /live and /ready


@app.post("/orders", status_code=202)
async def take(order: Order, producer: ProducerDep) -> dict[str, str]:
    receipt = await producer.publish("orders", order, key=str(order.id))
    return {"accepted": receipt.record_id}

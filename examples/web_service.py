"""A web service that publishes in its handlers, with FastAPI: ``uvicorn --app-dir examples web_service:app``.

A request is answered as soon as its order is in the ring: Kafka may be down for hours, and nobody waits. On SIGTERM
uvicorn ends the lifespan: what can be delivered in ``stop_timeout_ms`` is, the rest after the next start.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from aiorecover import RecoverableProducer, WalFullError


class Order(BaseModel):
    id: int
    item: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    wal_dir = os.environ.get("WAL_DIR", "wal")  # on a disk that outlives the process; workers may share it
    servers = os.environ.get("KAFKA", "localhost:9092")
    async with RecoverableProducer(wal_dir, bootstrap_servers=servers) as producer:
        app.state.producer = producer
        yield


def get_producer(request: Request) -> RecoverableProducer:
    producer: RecoverableProducer = request.app.state.producer
    return producer


Producer = Annotated[RecoverableProducer, Depends(get_producer)]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take(order: Order, producer: Producer) -> dict[str, str]:
    try:
        receipt = await producer.publish("orders", order, key=str(order.id))
    except WalFullError as error:  # a very long outage, or a full disk: nothing was stored
        raise HTTPException(503, "try again later", {"Retry-After": "10"}) from error
    return {"accepted": receipt.record_id}


@app.get("/health")
async def health(producer: Producer) -> dict[str, Any]:
    return msgspec.structs.asdict(producer.statistics())

"""For FastStream: its Kafka broker, with a ring between `publish` and Kafka.

>>> broker = KafkaBroker("localhost:9092", wal_dir="wal")  # doctest: +SKIP
>>> app = FastStream(broker)  # doctest: +SKIP

The application starts without Kafka: `publish` accepts at once, and subscribers begin once Kafka is there.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from aiorecover.extras import extra

with extra("faststream"):
    from faststream import kafka
    from faststream.exceptions import IncorrectState
    from faststream.kafka.helpers import AdminService
    from faststream.kafka.publisher.producer import AioKafkaFastProducerImpl
    from faststream.kafka.response import KafkaPublishCommand
    from faststream.kafka.security import parse_security

from aiorecover import ConfigError, Receipt, RecoverableProducer
from aiorecover.config import Options

__all__ = ["KafkaBroker"]

FIRST_S: Final = 5.0  # that `start` waits for Kafka before the rest of the application goes on without it
RETRY_S: Final = 1.0  # between the first two attempts to start the subscribers, then doubled
RETRY_MOST_S: Final = 10.0  # a wrong password shall not become a storm of logins
LOOK_S: Final = 0.05  # between two looks whether Kafka is reached

# Options of FastStream's own producer, which does not exist here.
_OF_PRODUCER: Final = frozenset(
    {
        *("acks", "key_serializer", "value_serializer", "compression_type", "max_batch_size", "partitioner"),
        *("max_request_size", "linger_ms", "enable_idempotence", "transactional_id", "transaction_timeout_ms"),
    }
)


class KafkaBroker(kafka.KafkaBroker):
    """FastStream's `KafkaBroker` that publishes through a `RecoverableProducer`.

    `publish` returns a `Receipt` as soon as the record is in the ring, and `publish_batch` a list of them; ``await
    receipt.delivered()`` waits for Kafka. ``no_confirm`` makes no difference, and each record of a batch has the
    partition of its key. A message is acknowledged once what its handler returns is in the ring.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost",
        *,
        wal_dir: str | os.PathLike[str],
        options: Options | None = None,
        **broker: Any,
    ) -> None:
        """Check the options; `start` does the rest.

        Args:
            bootstrap_servers: Kafka.
            wal_dir: as `RecoverableProducer` takes it; workers may share it.
            options: the others of `RecoverableProducer`. ``security`` and ``client_id`` are taken from ``broker``.
            broker: of FastStream's broker, without those of its producer (``acks``, ``linger_ms``, …).

        Raises:
            ConfigError: an option is unknown, wrong or in conflict with another one.

        """
        wrong = sorted(_OF_PRODUCER & broker.keys())
        if wrong:
            raise ConfigError(f"{wrong[0]} is an option of the producer: say it in options={{...}}, or leave it out")
        given: dict[str, Any] = {**parse_security(broker.get("security")), **(options or {})}
        if "client_id" in broker:
            given.setdefault("client_id", broker["client_id"])

        def make() -> RecoverableProducer:
            return RecoverableProducer(wal_dir, bootstrap_servers=bootstrap_servers, **given)

        make()  # options are wrong or not before anything starts
        ring = _Ring(broker.get("parser"), broker.get("decoder"), make)
        super().__init__(bootstrap_servers, **broker)
        self.config.broker_config.producer = ring
        self.config.broker_config.admin = _LazyAdmin()
        self._ring = ring
        self._waiting: asyncio.Task[None] | None = None

    @property
    def recoverable_producer(self) -> RecoverableProducer:
        """The producer: `statistics`, `state`, `dead_letters`.

        Raises:
            IncorrectState: the broker is not connected.

        """
        return self._ring.get()

    async def start(self) -> None:
        """Start the producer, and the subscribers if Kafka is there within 5 s; else they start when it is."""
        await self.connect()
        try:
            async with asyncio.timeout(FIRST_S):
                await self._start_subscribers()
        except (KafkaError, TimeoutError) as error:
            message = f"Kafka is not reached: subscribers start when it is, and publish accepts meanwhile error={error}"
            self.config.logger.log(message, logging.WARNING)
            self._waiting = asyncio.create_task(self._wait_for_kafka(), name="aiorecover-faststream")

    async def _start_subscribers(self) -> None:
        try:
            await super().start()
        except BaseException:
            for subscriber in self.subscribers:
                await subscriber.stop()
            raise

    async def _wait_for_kafka(self) -> None:
        pause, said = RETRY_S, ""
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MOST_S)
            try:
                await self._start_subscribers()
            except Exception as error:  # noqa: BLE001 - subscribers that stay away are worse than one more attempt
                if repr(error) != said:
                    said = repr(error)
                    self.config.logger.log(f"subscribers cannot start yet error={said}", logging.WARNING)
            else:
                return

    async def publish(  # type: ignore[override]
        self,
        message: Any,
        topic: str = "",
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        no_confirm: bool = False,
    ) -> Receipt:
        """Accept one record: when this returns, it is in the ring and survives the death of the process.

        Raises:
            WalFullError: the ring is full; nothing was stored.
            EncodeError, RecordTooLargeError: it cannot become a Kafka record; nothing was stored.

        """
        receipt: Any = await super().publish(
            message,
            topic,
            key=key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            no_confirm=no_confirm,
        )
        accepted: Receipt = receipt
        return accepted

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, then the producer, which takes ``stop_timeout_ms`` at most."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
            self._waiting = None
        await super().stop(exc_type, exc_val, exc_tb)

    async def ping(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - FastStream's signature
        """Return whether Kafka is reached within ``timeout`` seconds; None looks once."""
        try:
            async with asyncio.timeout(timeout or 0):
                while self.recoverable_producer.state != "connected":  # noqa: ASYNC110 - as its other readers
                    await asyncio.sleep(LOOK_S)
        except (TimeoutError, IncorrectState):
            return False
        return True


class _Ring(AioKafkaFastProducerImpl):
    """The producer that FastStream publishes with, over one of ours."""

    def __init__(self, parser: Any, decoder: Any, make: Callable[[], RecoverableProducer]) -> None:
        super().__init__(parser, decoder)
        self._make = make
        self._started: RecoverableProducer | None = None

    def get(self) -> RecoverableProducer:
        if self._started is None:
            raise IncorrectState("the broker is not connected: start it first")
        return self._started

    async def connect(self, producer: AIOKafkaProducer, serializer: Any, codec: Any = None) -> None:
        """Start a producer of ours in place of ``producer``."""
        await producer.stop()
        self.serializer = serializer
        self.codec = codec or self.codec
        ours = self._make()
        await ours.start()
        self._started = ours

    async def disconnect(self) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            await started.stop()

    def __bool__(self) -> bool:
        return self._started is not None

    @property
    def closed(self) -> bool:
        return self._started is None

    async def flush(self) -> None:
        await self.get().flush()

    async def publish(self, cmd: KafkaPublishCommand) -> Any:
        if cmd.body is None and cmd.key is not None:  # a tombstone
            return await self._store(cmd, cmd.key, None, None)
        return await self._store(cmd, cmd.key, *await self.codec.encode(cmd.body, self.serializer))

    async def publish_batch(self, cmd: KafkaPublishCommand) -> Any:
        encode_batch = getattr(self.codec, "encode_batch", None)
        if encode_batch is None:
            encoded = [await self.codec.encode(body, self.serializer) for body in cmd.batch_bodies]
        else:
            encoded = await encode_batch(cmd.batch_bodies, self.serializer)
        return [await self._store(cmd, cmd.key_for(index), *one) for index, one in enumerate(encoded)]

    async def _store(
        self, cmd: KafkaPublishCommand, key: Any, value: bytes | None, content_type: str | None
    ) -> Receipt:
        headers = {"content-type": content_type or "", **cmd.headers_to_publish()}
        return await self.get().publish(
            cmd.destination,
            value,
            key=key,
            partition=cmd.partition,
            timestamp_ms=cmd.timestamp_ms,
            headers=[(name, (text or "").encode()) for name, text in headers.items()],
        )


class _LazyAdmin(AdminService):
    """Connects when topics are to be made, not before: the application starts without Kafka."""

    __slots__ = ("_connection",)

    async def connect(self, **connection_kwargs: Any) -> None:
        self._connection = connection_kwargs

    async def create_topics(self, topics: list[Any]) -> list[Any]:
        try:
            await super().connect(**self._connection)
        except BaseException:
            await self.disconnect()
            raise
        return await super().create_topics(topics)

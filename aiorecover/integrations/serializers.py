"""Schema registries: confluent-kafka's serializers for Avro, Protobuf and JSON Schema as ``value_serializer``.

>>> values = RegistrySerializer()  # doctest: +SKIP
>>> await values.add("orders", AvroSerializer(registry, schema), {"item": "tea"})  # doctest: +SKIP
>>> producer = RecoverableProducer("wal", bootstrap_servers="localhost:9092", value_serializer=values)  # doctest: +SKIP
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiorecover.extras import extra

with extra("serializers"):
    from confluent_kafka.serialization import MessageField, SerializationContext, Serializer

from aiorecover import ConfigError, EncodeError

__all__ = ["RegistrySerializer"]


class RegistrySerializer:
    """A ``value_serializer``, or ``key_serializer``, with a serializer of confluent-kafka's for each topic.

    Such a serializer asks the registry when it meets a topic for the first time, and waits. `add` has that done in a
    thread, so that `publish` never waits for the registry: a topic that was not added is an ``EncodeError``.
    """

    def __init__(self, *, key: bool = False, others: Callable[[Any], bytes | None] | None = None) -> None:
        """Ask nothing yet: `add` does.

        Args:
            key: it is the ``key_serializer``, whose subjects end in ``-key``.
            others: serializer of the topics that were not added; None: they are refused.

        """
        self._field = MessageField.KEY if key else MessageField.VALUE
        self._others = others
        self._serializers: dict[str, Serializer] = {}

    async def add(self, topic: str, serializer: Serializer, example: object) -> None:
        """Register, or look up, the schema of a topic; awaited before the topic's first `publish`.

        Args:
            topic: Kafka's topic.
            serializer: ``AvroSerializer``, ``ProtobufSerializer``, ``JSONSerializer``, or another of confluent-kafka's
                that is no coroutine; one may serve several topics.
            example: what it can serialize; published nowhere.

        Raises:
            ConfigError: the serializer made no bytes of the example.
            Exception: what the serializer or its registry raises, where it is not reached, say: try again.

        """
        made = await asyncio.to_thread(serializer, example, self._context(topic, None))
        if not isinstance(made, bytes):
            message = "the serializer must make bytes of the example, and not be async"
            raise ConfigError(f"{message} topic={topic!r} serializer={type(serializer).__qualname__}")
        self._serializers[topic] = serializer

    def serialize(self, topic: str, value: Any, headers: Sequence[tuple[str, bytes | None]] | None, /) -> bytes | None:
        """Return the bytes of ``value``; the producer calls it.

        Raises:
            EncodeError: the topic was not added.

        """
        serializer = self._serializers.get(topic)
        if serializer is not None:
            data: bytes | None = serializer(value, self._context(topic, headers))
            return data
        if self._others is None:
            raise EncodeError(f"the topic has no schema: await add(topic, serializer, example) first topic={topic!r}")
        return self._others(value)

    def _context(self, topic: str, headers: Sequence[tuple[str, bytes | None]] | None) -> SerializationContext:
        return SerializationContext(topic, self._field, None if headers is None else list(headers))

"""CloudEvents in Kafka's binary mode: attributes become headers, the data becomes the value.

>>> await producer.publish("orders", **binary(event))  # doctest: +SKIP
"""

from typing import TypedDict

from aiorecover.extras import extra

with extra("cloudevents"):
    from cloudevents.core.base import BaseCloudEvent
    from cloudevents.core.bindings.kafka import to_binary_event


__all__ = ["Binary", "binary"]


class Binary(TypedDict):
    """Arguments of `publish`."""

    value: bytes
    key: str | bytes | None
    headers: list[tuple[str, bytes | None]]


def binary(event: BaseCloudEvent) -> Binary:
    """Return what to `publish` of an event of the CloudEvents SDK, for a producer without ``value_serializer``.

    The extension ``partitionkey`` is also the key. Data that is no bytes becomes JSON or text, by ``datacontenttype``.
    """
    message = to_binary_event(event)
    return Binary(value=message.value, key=message.key, headers=list(message.headers.items()))

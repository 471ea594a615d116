"""The request for a group's committed offset that knows of transactions which are not over (KIP-447, Kafka 2.5).

aiokafka has the versions up to 3, in which a transaction that is being committed is simply not seen. Older brokers are
asked in that one.
"""

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

UNSTABLE = 88  # the code that says: a transaction with that offset is not over

_API_KEY = 9


class OffsetFetchResponse_v7(Response):  # noqa: N801 - as aiokafka names them
    """As the protocol says."""

    API_KEY = _API_KEY
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetFetchRequest_v7(RequestStruct):  # noqa: N801 - as aiokafka names them
    """As the protocol says."""

    FLEXIBLE_VERSION = True
    API_KEY = _API_KEY
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("consumer_group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class StableOffsetFetch(Request[OffsetFetchRequest_v3 | OffsetFetchRequest_v7]):
    """The offset of one partition, once no transaction that is being committed may change it."""

    API_KEY = _API_KEY

    def __init__(self, group: str, topic: str, partition: int) -> None:
        """Ask for what ``group`` has committed there."""
        self._group = group
        self._topic = topic
        self._partition = partition

    def build(self, kind: Any) -> Any:
        """In the version that the broker knows."""
        if kind is OffsetFetchRequest_v7:
            return kind(self._group, [(self._topic, [self._partition], {})], True, {})  # noqa: FBT003 - a struct's fields
        return kind(self._group, [(self._topic, [self._partition])])


def answered(answer: Any) -> tuple[int, str, int]:
    """Offset (-1: there is none), what was committed with it, and the error code of the one partition, or of all."""
    said = answer.to_object()
    found = [part for topic in said["topics"] for part in topic["partitions"]]
    if said["error_code"] or not found:
        return -1, "", said["error_code"]
    return found[0]["offset"], found[0]["metadata"] or "", found[0]["error_code"]

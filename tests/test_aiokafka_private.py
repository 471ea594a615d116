"""The guard over aiokafka: what delivery relies on beside its documentation. It says what an upgrade has changed."""

import inspect
from typing import Any

import pytest
from aiokafka import client as aiokafka_client
from aiokafka import conn
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.record.util import calc_crc32c

from aiorecover.kafka.produce import API_KEY, API_VERSION


def test_the_client_keeps_its_connections_by_node_and_group_and_asks_for_them_where_we_do() -> None:
    """`kafka.client` makes connections itself, and puts them where aiokafka looks for them."""
    made = inspect.getsource(AIOKafkaClient._get_conn)
    assert "self._conns[conn_id]" in made or "self._conns[" in made
    assert list(inspect.signature(AIOKafkaClient._get_conn).parameters) == ["self", "node_id", "group", "no_hint"]
    assert list(inspect.signature(AIOKafkaClient._on_connection_closed).parameters) == ["self", "conn", "reason"]
    assert {ConnectionGroup.DEFAULT, ConnectionGroup.COORDINATION} <= set(ConnectionGroup)


def test_a_request_is_asked_for_its_version_and_its_bytes() -> None:
    """`kafka.produce` gives a request of its own to `AIOKafkaClient.send`, which prepares it for the broker."""
    assert ".ready(" in inspect.getsource(AIOKafkaClient.send)
    assert "_get_conn" in inspect.getsource(AIOKafkaClient.ready)
    sending = inspect.getsource(conn.AIOKafkaConnection.send)
    assert ".prepare(" in sending
    assert "header.encode() + request_struct.encode()" in sending
    assert "write(size + message)" in sending
    assert (ProduceRequest_v7.API_KEY, ProduceRequest_v7.API_VERSION) == (API_KEY, API_VERSION)
    assert hasattr(RequestStruct, "encode")
    assert hasattr(Response, "decode")


@pytest.mark.parametrize(
    "name", ["ssl_context", "security_protocol", "sasl_mechanism", "request_timeout_ms", "on_close"]
)
def test_a_connection_is_made_with_the_options_that_we_hand_on(name: str) -> None:
    assert name in inspect.signature(conn.create_conn).parameters
    assert vars(aiokafka_client)["create_conn"] is conn.create_conn


def test_the_checksum_takes_views_of_the_ring_without_a_copy() -> None:
    view: Any = memoryview(b"123456789")
    assert calc_crc32c(view) == calc_crc32c(b"123456789") == 0xE3069283

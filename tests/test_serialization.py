"""From a user's values to bytes: the rules, copies, serializers, and that everything else is an EncodeError."""

import dataclasses
import datetime as dt
import enum
import json
import uuid
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.errors import EncodeError
from aiorecover.record import RECORD_ID_HEADER
from aiorecover.serialization import (
    Headers,
    check_headers,
    check_partition,
    check_timestamp_ms,
    check_topic,
    encode_key,
    encode_value,
    key_encoder,
    value_encoder,
)


class Struct(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Data:
    number: int


class Model(pydantic.BaseModel):
    number: int
    at: dt.datetime = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)


class Broken(pydantic.BaseModel):
    number: int

    @pydantic.field_serializer("number")
    def fail(self, _value: int) -> int:
        raise ValueError("no number today")


class Colour(enum.Enum):
    RED = "red"


class Fruit(enum.StrEnum):
    PEAR = "pear"


class Text(str):
    __slots__ = ()


class Bytes(bytes):
    pass


class Number(int):
    pass


def refusal(call: Callable[..., object], *args: object) -> str:
    with pytest.raises(EncodeError) as caught:
        call(*args)
    return str(caught.value)


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


# --- values and keys without a serializer


@pytest.mark.parametrize("encode", [encode_value, encode_key])
@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        pytest.param(b"x", b"x", id="bytes"),
        pytest.param(b"", b"", id="empty bytes"),
        pytest.param(None, None, id="null"),
        pytest.param("", b"", id="empty text"),
        pytest.param("käse", b"k\xc3\xa4se", id="text"),
        pytest.param(bytearray(b"x"), b"x", id="bytearray"),
        pytest.param(memoryview(b"xyz")[1:], b"yz", id="memoryview"),
        pytest.param(memoryview(b"abcd")[::2], b"ac", id="memoryview with steps"),
        pytest.param(Bytes(b"x"), b"x", id="bytes of another class"),
        pytest.param(Text("x"), b"x", id="text of another class"),
        pytest.param(Fruit.PEAR, b"pear", id="text enum"),
    ],
)
def test_bytes_and_text_and_null_are_the_same_for_keys_and_values(
    encode: Callable[..., bytes | None], given_value: object, expected: bytes | None
) -> None:
    found = encode("topic", given_value, None)
    assert found == expected
    assert found is None or type(found) is bytes


@given(st.binary())
def test_any_bytes_arrive_as_they_are(data: bytes) -> None:
    for given_value in (data, bytearray(data), memoryview(data)):
        assert encode_value("topic", given_value) == data
        assert encode_key("topic", given_value) == data


@given(st.text())
def test_any_text_arrives_as_utf8(text: str) -> None:
    assert (encode_value("topic", text) or b"").decode() == text


@pytest.mark.parametrize("encode", [encode_value, encode_key])
def test_the_caller_may_reuse_its_buffer(encode: Callable[..., bytes | None]) -> None:
    buffer = bytearray(b"first")
    direct, view = encode("topic", buffer), encode("topic", memoryview(buffer))
    buffer[:] = b"other"
    assert (direct, view) == (b"first", b"first")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, True, None]}, b'{"a":[1,2.5,true,null]}'),
        ({}, b"{}"),
        ([], b"[]"),
        ((1, 2), b"[1,2]"),
        (0, b"0"),
        (False, b"false"),
        (2**70, b"1180591620717411303424"),
        (1.5, b"1.5"),
        (Struct(1), b'{"number":1}'),
        (Data(1), b'{"number":1}'),
        (Model(number=1), b'{"number":1,"at":"2024-02-29T00:00:00Z"}'),
        ([Model(number=2)], b'[{"number":2,"at":"2024-02-29T00:00:00Z"}]'),
        ({"colour": Colour.RED}, b'{"colour":"red"}'),
        (Colour.RED, b'"red"'),
        (Decimal("1.10"), b'"1.10"'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), b'"2024-01-01T00:00:00Z"'),
        (np.float64(1.5), b"1.5"),
        ([Number(7)], b"[7]"),
        ([Text("x"), np.str_("y")], b'["x","y"]'),
        ({"raw": b"x"}, b'{"raw":"eA=="}'),
        (float("nan"), b"null"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_any_other_value_becomes_json(value: object, expected: bytes) -> None:
    assert encode_value("topic", value) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), JSON))
def test_plain_data_survives_the_way_through_json(value: dict[str, object]) -> None:
    assert json.loads(encode_value("topic", value) or b"") == value


def endless() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="object"),
        pytest.param({"a": object()}, id="object inside"),
        pytest.param(deque([1]), id="deque"),
        pytest.param(1j, id="complex"),
        pytest.param(endless(), id="cycle"),
        pytest.param({(1, 2): 3}, id="tuple as a key"),
        pytest.param({"a": "\ud800"}, id="surrogate inside"),
        pytest.param(Broken(number=1), id="model that fails"),
        pytest.param(Model, id="model class"),
    ],
)
def test_a_value_without_a_json_form_is_refused_with_its_type_and_a_remedy(value: object) -> None:
    text = refusal(encode_value, "orders", value)
    assert text.startswith("the value has no JSON form: pass bytes, str or plain data")
    assert f"topic='orders' type={type(value).__qualname__} error=" in text


def test_the_cause_of_a_refusal_is_kept() -> None:
    with pytest.raises(EncodeError) as caught:
        encode_value("topic", Broken(number=1))
    assert "no number today" in str(caught.value.__cause__)


def test_a_failed_value_does_not_hurt_the_next_one() -> None:
    refusal(encode_value, "topic", {"a": [1, object()]})
    assert encode_value("topic", {"a": 1}) == b'{"a":1}'


@pytest.mark.parametrize("key", [1, 1.0, True, {"a": 1}, ["a"], Colour.RED, object(), uuid.UUID(int=1)])
def test_a_key_is_never_guessed(key: object) -> None:
    text = refusal(encode_key, "orders", key)
    assert text.startswith("a key must be bytes, str or None: pass str(key), or set key_serializer")
    assert text.endswith(f"topic='orders' type={type(key).__qualname__}")


@pytest.mark.parametrize("encode", [encode_value, encode_key])
def test_lone_surrogates_are_refused(encode: Callable[..., object]) -> None:
    assert "lone surrogates" in refusal(encode, "orders", "ab\udcff")
    assert refusal(encode, "orders", "ab\udcff").endswith("at=2 topic='orders'")


@pytest.mark.parametrize("encode", [encode_value, encode_key])
def test_a_released_memoryview_is_refused(encode: Callable[..., object]) -> None:
    assert "publish before releasing" in refusal(encode, "orders", released())


def test_an_encode_error_is_the_type_error_that_aiokafka_s_callers_expect() -> None:
    with pytest.raises(TypeError):
        encode_key("topic", 1)


# --- serializers


def test_without_a_serializer_the_rules_above_apply() -> None:
    assert value_encoder(None) is encode_value
    assert key_encoder(None) is encode_key


class Recorder:
    def __init__(self, result: object) -> None:
        self.result = result
        self.calls: list[tuple[str, object, object]] = []

    def serialize(self, topic: str, value: object, headers: Headers | None) -> Any:
        self.calls.append((topic, value, headers))
        return self.result


MAKERS = [(key_encoder, "key_serializer"), (value_encoder, "value_serializer")]


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_a_callable_gets_the_value_alone(make: Callable[..., Any], option: str) -> None:
    encode = make(lambda value: f"<{value}>".encode())
    assert encode("topic", 7, [("a", b"b")]) == b"<7>", option


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_an_object_gets_topic_value_and_headers(make: Callable[..., Any], option: str) -> None:
    recorder = Recorder(b"result")
    assert make(recorder)("orders", 7, [("a", b"b")]) == b"result", option
    assert recorder.calls == [("orders", 7, [("a", b"b")])]


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_none_is_null_and_never_reaches_a_serializer(make: Callable[..., Any], option: str) -> None:
    recorder = Recorder(b"result")
    assert make(recorder)("orders", None, None) is None, option
    assert recorder.calls == []


@pytest.mark.parametrize(("make", "option"), MAKERS)
@pytest.mark.parametrize(
    "result", [b"x", bytearray(b"x"), memoryview(b"x"), Bytes(b"x")], ids=lambda result: type(result).__name__
)
def test_a_serializer_may_return_anything_bytes_like(make: Callable[..., Any], option: str, result: object) -> None:
    found = make(lambda _value: result)("topic", 1, None)
    assert found == b"x", option
    assert type(found) is bytes


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_a_serializer_may_return_none_for_null(make: Callable[..., Any], option: str) -> None:
    assert make(lambda _value: None)("topic", 1, None) is None, option


def test_the_buffer_that_a_serializer_returns_may_be_reused_by_it() -> None:
    buffer = bytearray(b"first")
    found = value_encoder(lambda _value: buffer)("topic", 1, None)
    buffer[:] = b"other"
    assert found == b"first"


@pytest.mark.parametrize(("make", "option"), MAKERS)
@pytest.mark.parametrize("result", ["text", 1, ["x"], {}], ids=repr)
def test_a_serializer_that_returns_something_else_is_named(
    make: Callable[..., Any], option: str, result: object
) -> None:
    text = refusal(make(lambda _value: result), "orders", 1, None)
    assert text.startswith(f"{option} must return bytes or None")
    assert text.endswith(f"topic='orders' type={type(result).__qualname__}")


@pytest.mark.parametrize(("make", "option"), MAKERS)
@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("id"), RecursionError(), UnicodeError()], ids=repr)
def test_whatever_a_serializer_raises_becomes_an_encode_error_with_its_cause(
    make: Callable[..., Any], option: str, error: Exception
) -> None:
    def fail(_value: object) -> bytes:
        raise error

    with pytest.raises(EncodeError, match=f"^{option} failed: ") as caught:
        make(fail)("orders", 1, None)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_what_is_no_serializer_is_refused_when_the_encoder_is_made(make: Callable[..., Any], option: str) -> None:
    assert refusal(make, 7).startswith(f"{option} must be callable")


# --- headers


@pytest.mark.parametrize("empty", [None, [], ()], ids=repr)
def test_no_headers_are_an_empty_list(empty: object) -> None:
    assert check_headers(empty) == []


def test_headers_come_back_as_a_fresh_list_of_plain_pairs() -> None:
    given_headers = [("a", b"1"), ["b", bytearray(b"2")], ("c", memoryview(b"3")), (Text("d"), None), ("ä", b"")]
    found = check_headers(given_headers)
    assert found == [("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", None), ("ä", b"")]
    assert all(type(name) is str and (value is None or type(value) is bytes) for name, value in found)
    given_headers.clear()
    assert len(found) == 5


def test_a_header_may_stand_more_than_once() -> None:
    assert check_headers((("a", b"1"), ("a", b"2"))) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize(
    ("headers", "remedy"),
    [
        ({"a": b"1"}, "use list(headers.items())"),
        ({}, "use list(headers.items())"),
        ("ab", "use list(headers)"),
        ("", "use list(headers)"),
        ({("a", b"1")}, "use list(headers)"),
        pytest.param(iter([("a", b"1")]), "use list(headers)", id="an iterator"),
        (1, "use list(headers)"),
        ([b"a"], "not a pair"),
        ([("a",)], "not a pair"),
        ([("a", b"1", 1)], "not a pair"),
        (["ab"], "not a pair"),
        ([(b"a", b"1")], "decode it first"),
        ([(None, b"1")], "decode it first"),
        ([("a", "1")], "use value.encode()"),
        ([("a", 1)], "use value.encode()"),
        ([("a\ud800", b"1")], "lone surrogates"),
        pytest.param([("a", released())], "publish before releasing", id="released memory"),
        ([(RECORD_ID_HEADER, b"1")], "use another name"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_headers_of_another_shape_are_refused_with_a_remedy(headers: object, remedy: str) -> None:
    assert remedy in refusal(check_headers, headers)


def test_the_contents_of_refused_headers_are_not_repeated() -> None:
    assert "secret" not in refusal(check_headers, [("authorization", "secret")])
    assert "secret" not in refusal(check_headers, [("authorization", b"secret", 1)])


# --- topic, partition, timestamp


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "x" * 249, "...", "0", Text("orders"), Fruit.PEAR])
def test_a_topic_by_kafka_s_rules_comes_back_as_plain_text(topic: str) -> None:
    found = check_topic(topic)
    assert found == topic
    assert type(found) is str


@pytest.mark.parametrize(
    "topic",
    ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "a:b", "\ud800", None, b"a", 1, ["a"]],
    ids=lambda topic: ascii(topic)[:20],
)
def test_a_topic_that_kafka_refuses_is_refused_here(topic: object) -> None:
    assert "topic=" in refusal(check_topic, topic)


@pytest.mark.parametrize("partition", [None, 0, 1, 2**31 - 1])
def test_a_partition_is_none_or_a_number_from_zero(partition: int | None) -> None:
    assert check_partition(partition) == partition


@pytest.mark.parametrize("partition", [-1, 2**31, True, False, 1.0, "1", np.int64(1), [1]], ids=repr)
def test_anything_else_is_no_partition(partition: object) -> None:
    assert refusal(check_partition, partition).startswith("a partition must be an int from 0 to 2147483647")


@pytest.mark.parametrize("timestamp", [None, 0, 1_700_000_000_000, 2**63 - 1])
def test_a_timestamp_is_none_or_milliseconds(timestamp: int | None) -> None:
    assert check_timestamp_ms(timestamp) == timestamp


@pytest.mark.parametrize("timestamp", [-1, 2**63, True, 1.7e12, "1", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], ids=repr)
def test_anything_else_is_no_timestamp(timestamp: object) -> None:
    assert refusal(check_timestamp_ms, timestamp).startswith("timestamp_ms must be an int of milliseconds")

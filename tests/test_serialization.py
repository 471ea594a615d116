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
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.errors import EncodeError
from aiorecover.serialization import Headers, encode_key, encode_value, key_encoder, value_encoder


class Struct(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Data:
    number: int


class Model(pydantic.BaseModel):
    number: int = pydantic.Field(alias="itemNumber")
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


# --- without a serializer


@pytest.mark.parametrize("encode", [encode_value, encode_key])
@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        pytest.param(b"", b"", id="empty bytes"),
        pytest.param(None, None, id="null"),
        pytest.param("", b"", id="empty text"),
        pytest.param("käse", b"k\xc3\xa4se", id="text"),
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


@given(st.binary(), st.text())
def test_any_bytes_and_any_text_arrive_as_they_are(data: bytes, text: str) -> None:
    for encode in (encode_value, encode_key):
        for given_value in (data, bytearray(data), memoryview(data)):
            assert encode("topic", given_value) == data
        assert (encode("topic", text) or b"").decode() == text


@pytest.mark.parametrize("encode", [encode_value, encode_key, value_encoder(lambda value: value)])
def test_the_caller_may_reuse_its_buffer(encode: Callable[..., bytes | None]) -> None:
    buffer = bytearray(b"first")
    direct, view = encode("topic", buffer), encode("topic", memoryview(buffer))
    buffer[:] = b"other"
    assert (direct, view) == (b"first", b"first")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, True, None]}, b'{"a":[1,2.5,true,null]}'),
        ((1, 2), b"[1,2]"),
        (False, b"false"),
        (2**70, b"1180591620717411303424"),
        (Struct(1), b'{"number":1}'),
        (Data(1), b'{"number":1}'),
        ([Model(itemNumber=2)], b'[{"itemNumber":2,"at":"2024-02-29T00:00:00Z"}]'),
        ({"colour": Colour.RED}, b'{"colour":"red"}'),
        (Decimal("1.10"), b'"1.10"'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), b'"2024-01-01T00:00:00Z"'),
        (
            {"n": np.int64(7), "b": np.bool_(True), "f": np.float32(1.5), "d": np.float64(1.5)},
            b'{"n":7,"b":true,"f":1.5,"d":1.5}',
        ),
        ([Number(7), Text("x"), np.str_("y")], b'[7,"x","y"]'),
        ({1: 2, 1.5: 3}, b'{"1":2,"1.5":3}'),
        ({True: 1, None: [{False: True}]}, b'{"true":1,"null":[{"false":true}]}'),
        ({np.int64(3): 1, np.bool_(True): 2}, b'{"3":1,"true":2}'),
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
    max_leaves=8,
)


KEYS = st.none() | st.booleans() | st.integers() | st.text()


@settings(max_examples=40)
@given(st.dictionaries(KEYS, JSON))
def test_plain_data_is_what_the_standard_json_makes_of_it(value: dict[object, object]) -> None:
    assert json.loads(encode_value("topic", value) or b"") == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        pytest.param(object(), "", id="object"),
        pytest.param({"order": [{"good": 1}, {"bad": object()}]}, " field=order[1].bad", id="object inside"),
        pytest.param({"a": {"b": 1j}}, " field=a.b", id="complex inside"),
        pytest.param(deque([1]), "", id="deque"),
        pytest.param(np.array([1, 2]), "", id="array"),
        pytest.param({"at": np.datetime64("2024-01-01")}, " field=at", id="numpy's time"),
        pytest.param({(1, 2): 3}, " field=(1, 2)", id="tuple as a key"),
        pytest.param({"a": "\ud800"}, " field=a", id="surrogate inside"),
        pytest.param(Broken(number=1), "", id="model that fails"),
        pytest.param(Model, "", id="model class"),
    ],
)
def test_a_value_without_a_json_form_is_refused_with_its_field_and_a_remedy(value: object, field: str) -> None:
    text = refusal(encode_value, "orders", value)
    assert text.startswith("the value has no JSON form: pass bytes, str or plain data")
    assert f"topic='orders' type={type(value).__qualname__}{field} error=" in text
    assert encode_value("topic", {"a": 1}) == b'{"a":1}'  # the next one is not hurt


def test_the_cause_of_a_refusal_is_kept() -> None:
    with pytest.raises(TypeError) as caught:  # what aiokafka's callers expect
        encode_value("topic", Broken(number=1))
    assert "no number today" in str(caught.value.__cause__)


# --- serializers


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, object, object]] = []

    def serialize(self, topic: str, value: object, headers: Headers | None) -> Any:
        self.calls.append((topic, value, headers))
        return b"result"


MAKERS = [(key_encoder, "key_serializer"), (value_encoder, "value_serializer")]


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_a_callable_gets_the_value_and_an_object_where_it_goes_and_neither_gets_null(
    make: Callable[..., Any], option: str
) -> None:
    assert make(lambda value: f"<{value}>".encode())("topic", 7, [("a", b"b")]) == b"<7>", option
    recorder = Recorder()
    assert make(recorder)("orders", 7, [("a", b"b")]) == b"result", option
    assert make(recorder)("orders", None, None) is None, option
    assert recorder.calls == [("orders", 7, [("a", b"b")])]


@pytest.mark.parametrize(("make", "option"), MAKERS)
def test_a_serializer_returns_bytes_or_null_and_anything_else_is_named(make: Callable[..., Any], option: str) -> None:
    for result, expected in ((bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), (Bytes(b"x"), b"x"), (None, None)):
        assert make(lambda _, result=result: result)("topic", 1, None) == expected
    for wrong in ("text", 1, ["x"]):
        text = refusal(make(lambda _, wrong=wrong: wrong), "orders", 1, None)
        assert text.startswith(f"{option} must return bytes or None")
        assert text.endswith(f"topic='orders' type={type(wrong).__qualname__}")


@pytest.mark.parametrize(("make", "option"), MAKERS)
@pytest.mark.parametrize("error", [ValueError("odd" * 100_000), RecursionError()], ids=lambda error: repr(error)[:12])
def test_whatever_a_serializer_raises_becomes_one_short_error_with_its_cause(
    make: Callable[..., Any], option: str, error: Exception
) -> None:
    def fail(_value: object) -> bytes:
        raise error

    with pytest.raises(EncodeError, match=f"^{option} failed: ") as caught:
        make(fail)("orders", 1, None)
    assert caught.value.__cause__ is error
    assert len(str(caught.value)) < 400

"""The table of error codes and the bytes of requests, compared with aiokafka's own."""

from io import BytesIO

import pytest
from aiokafka import errors
from aiokafka.protocol.produce import ProduceRequest_v7, ProduceResponse_v7

from aiorecover.kafka.outcomes import OUTCOMES, Action, Persisted, outcome_of
from aiorecover.kafka.produce import Answer, ProduceRequest

RETRIED = {Action.RETRY, Action.MOVED, Action.FOLLOWERS, Action.STALL}


def test_errors_that_aiokafka_retries_are_retried() -> None:
    for code, kind in errors.kafka_errors.items():
        if getattr(kind, "retriable", False) and code in OUTCOMES:
            assert OUTCOMES[code].action in RETRIED, kind


def test_errors_that_ask_for_new_metadata_lead_to_it() -> None:
    for code, kind in errors.kafka_errors.items():
        if getattr(kind, "invalid_metadata", False) and code in OUTCOMES:
            assert OUTCOMES[code].action is Action.MOVED, kind


@pytest.mark.parametrize("code", [7, 20, 3, 6, 56, -1, 13])
def test_an_answer_after_a_possible_append_is_never_taken_for_a_refusal(code: int) -> None:
    assert outcome_of(code).persisted is Persisted.POSSIBLY


def test_an_unknown_code_is_retried_as_possibly_persisted() -> None:
    found = outcome_of(12345)
    assert (found.action, found.persisted) == (Action.RETRY, Persisted.POSSIBLY)
    assert "12345" in found.reason


def test_only_what_is_said_of_the_records_themselves_buries_them() -> None:
    burying = {code for code, one in OUTCOMES.items() if one.action in (Action.SPLIT, Action.REFUSED)}
    assert burying == {10, 18, 32, 44, 87}


def test_the_request_is_what_aiokafka_itself_would_send() -> None:
    batches = [("a", 3, [b"xx", b"yyy"]), ("b", 0, [b"z"]), ("a", 1, [b"", b"w" * 300])]
    ours = sent(ProduceRequest("tx", 1500, batches))
    theirs = ProduceRequest_v7(
        transactional_id="tx",
        required_acks=-1,
        timeout=1500,
        topics=[("a", [(3, b"xxyyy"), (1, b"w" * 300)]), ("b", [(0, b"z")])],
    ).encode()
    assert ours == theirs
    assert sent(ProduceRequest(None, 1, [])) == ProduceRequest_v7(None, -1, 1, []).encode()


def sent(request: ProduceRequest) -> bytes:
    """Return the body of what aiokafka's connection joins."""
    headed = b"header" + request.prepare({}).encode()
    message: bytes = b"size" + headed
    assert message.startswith(b"sizeheader")
    assert len(message) == len(b"size") + len(headed)
    return message.removeprefix(b"sizeheader")


def test_the_answer_is_read_as_aiokafka_would() -> None:
    topics = [("topic", [(0, 0, 17, -1, 0), (5, 6, -1, -1, -1)]), ("other", [(1, 7, -1, -1, -1)])]
    data = ProduceResponse_v7(topics, 250).encode()
    answers = ProduceRequest(None, 1, []).prepare({}).RESPONSE_TYPE.decode(BytesIO(data))
    assert answers.partitions == [Answer("topic", 0, 0, 17), Answer("topic", 5, 6, -1), Answer("other", 1, 7, -1)]
    assert answers.throttle_ms == 250

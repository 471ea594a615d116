"""The table of outcomes: complete for the installed aiokafka, right where a mistake would lose or repeat records."""

import asyncio
import inspect
from collections import Counter

import pytest
from aiokafka import errors as kafka

from aiorecover.delivery import outcomes
from aiorecover.delivery.outcomes import (
    OUTCOMES,
    UNNAMED_CODES,
    Outcome,
    Persisted,
    SilentError,
    SwallowedError,
    UntimelyError,
    Verdict,
    outcome_of,
)
from aiorecover.errors import DeliveryError

NOT, POSSIBLY, PERSISTED = Persisted.NOT, Persisted.POSSIBLY, Persisted.PERSISTED

ERRORS = sorted(
    {
        kind
        for kind in vars(kafka).values()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == kafka.__name__
    },
    key=lambda kind: kind.__name__,
)


def seen(kind: type[BaseException]) -> tuple[Verdict, Persisted]:
    found = outcome_of(kind())
    return found.verdict, found.persisted


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_class_of_aiokafka_has_its_decision(kind: type[BaseException]) -> None:
    assert kind in OUTCOMES, "a new error class of aiokafka: decide what it means for a batch"
    assert outcome_of(kind()) == OUTCOMES[kind]


def test_every_class_stands_in_the_table_once() -> None:
    kinds = Counter(
        kind
        for groups in (
            outcomes._RETRIABLE,
            outcomes._PERMANENT,
            outcomes._FRESH_IDENTITY,
            outcomes._SESSION_FATAL,
        )
        for _, _, kinds in groups
        for kind in kinds
    )
    assert [kind for kind, count in kinds.items() if count > 1] == []
    assert kinds.keys() == OUTCOMES.keys()


def test_the_table_names_nothing_but_aiokafka_s_errors_the_unnamed_codes_and_our_own_three() -> None:
    assert OUTCOMES.keys() == {*ERRORS, *UNNAMED_CODES.values(), SilentError, SwallowedError, UntimelyError}


def test_every_outcome_says_why_in_one_lower_case_line() -> None:
    for outcome in [*OUTCOMES.values(), outcome_of(TimeoutError()), outcome_of(OSError())]:
        assert outcome.reason
        assert outcome.reason == outcome.reason.lower().strip()
        assert "\n" not in outcome.reason


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if getattr(kind, "retriable", False)])
def test_what_aiokafka_retries_is_never_permanent_here(kind: type[BaseException]) -> None:
    assert outcome_of(kind()).verdict is Verdict.RETRIABLE


@pytest.mark.parametrize(
    "kind",
    [
        kafka.TopicAuthorizationFailedError,
        kafka.ClusterAuthorizationFailedError,
        kafka.GroupAuthorizationFailedError,
        kafka.DelegationTokenAuthorizationFailed,
        kafka.SaslAuthenticationFailed,
        kafka.AuthenticationFailedError,
        kafka.DelegationTokenExpired,
    ],
)
def test_missing_rights_stall_a_lane_and_never_dead_letter(kind: type[BaseException]) -> None:
    assert seen(kind) == (Verdict.RETRIABLE, NOT)


def test_permanent_is_only_what_the_broker_says_of_the_records_themselves() -> None:
    permanent = {kind for kind, outcome in OUTCOMES.items() if outcome.verdict is Verdict.PERMANENT}
    assert permanent == {
        kafka.MessageSizeTooLargeError,
        kafka.RecordListTooLargeError,
        kafka.InvalidTimestampError,
        kafka.PolicyViolationError,
        kafka.InvalidTopicError,
        UNNAMED_CODES[87],
    }


def test_permanent_never_leaves_open_whether_the_batch_was_appended() -> None:
    """Else halving would have to fear that the broker swallows the halves."""
    assert {o.persisted for o in OUTCOMES.values() if o.verdict is Verdict.PERMANENT} == {NOT}


@pytest.mark.parametrize(
    "kind",
    [
        kafka.OutOfOrderSequenceNumber,
        kafka.UnknownProducerId,
        kafka.InvalidProducerIdMapping,
        kafka.InvalidProducerEpoch,
        kafka.ProducerFenced,
        UNNAMED_CODES[90],
    ],
)
def test_a_lost_identity_is_replaced_and_the_session_lives(kind: type[BaseException]) -> None:
    assert seen(kind) == (Verdict.FRESH_IDENTITY, NOT)


@pytest.mark.parametrize(
    "kind",
    [
        kafka.RequestTimedOutError,
        kafka.KafkaConnectionError,
        kafka.CorrelationIdError,
        kafka.StaleLeaderEpochCodeError,
        kafka.NotEnoughReplicasAfterAppendError,
        kafka.NotLeaderForPartitionError,
        kafka.UnknownTopicOrPartitionError,
        kafka.KafkaStorageError,
        kafka.UnknownError,
        kafka.KafkaError,
    ],
)
def test_an_append_that_may_have_happened_is_possibly_persisted(kind: type[BaseException]) -> None:
    assert outcome_of(kind()).persisted is POSSIBLY


@pytest.mark.parametrize(
    "kind",
    [
        kafka.NodeNotReadyError,
        kafka.KafkaTimeoutError,
        kafka.NotEnoughReplicasError,
        kafka.LeaderNotAvailableError,
        kafka.CorruptRecordException,
        kafka.MessageSizeTooLargeError,
        kafka.TopicAuthorizationFailedError,
        kafka.ProducerClosed,
    ],
)
def test_what_was_refused_before_the_append_is_not_persisted(kind: type[BaseException]) -> None:
    assert outcome_of(kind()).persisted is NOT


def test_only_a_duplicate_is_known_to_be_in_the_log() -> None:
    assert [kind for kind, o in OUTCOMES.items() if o.persisted is PERSISTED] == [kafka.DuplicateSequenceNumber]


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        OSError(5, "input/output error"),
        ConnectionResetError(),
        BrokenPipeError(),
        asyncio.CancelledError(),
        AssertionError("Unrecognized partition"),
        AttributeError("_builder"),
        RuntimeError("closed transport"),
        ValueError(),
        MemoryError(),
        KeyboardInterrupt(),
        BaseException(),
    ],
    ids=repr,
)
def test_what_is_not_kafka_s_ends_the_session_and_leaves_the_batch_open(error: BaseException) -> None:
    found = outcome_of(error)
    assert (found.verdict, found.persisted) == (Verdict.SESSION_FATAL, POSSIBLY)


def test_errors_of_the_system_are_told_apart_in_the_reason() -> None:
    reasons = [outcome_of(error).reason for error in (TimeoutError(), OSError(), asyncio.CancelledError())]
    assert len(set(reasons)) == 3
    assert outcome_of(ConnectionResetError()) == outcome_of(OSError())


class NewKafkaError(kafka.MessageSizeTooLargeError):  # type: ignore[misc, unused-ignore]
    errno = 9999


def test_an_unknown_kafka_class_is_not_judged_by_its_parents() -> None:
    for error in (NewKafkaError(), DeliveryError("an error of ours")):
        found = outcome_of(error)
        assert (found.verdict, found.persisted) == (Verdict.SESSION_FATAL, POSSIBLY)


def test_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        outcome_of(kafka.KafkaError()).reason = "another"  # type: ignore[misc]
    assert isinstance(outcome_of(kafka.KafkaError()), Outcome)


def test_the_persisted_words_are_those_of_the_public_error() -> None:
    assert [one.value for one in Persisted] == ["not", "possibly", "persisted"]
    assert DeliveryError("text", persisted=POSSIBLY.value).persisted == "possibly"


# --- codes that aiokafka has no class for


def test_the_unnamed_codes_are_unknown_to_the_installed_aiokafka() -> None:
    """A class of aiokafka's own would be the better one: take the code out of the table then."""
    found = {code: kafka.kafka_errors.get(code) for code in UNNAMED_CODES}
    assert [code for code, error in found.items() if error not in {None, UNNAMED_CODES[code]}] == []


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (74, Verdict.RETRIABLE),
        (75, Verdict.RETRIABLE),
        (76, Verdict.RETRIABLE),
        (87, Verdict.PERMANENT),
        (89, Verdict.RETRIABLE),
        (90, Verdict.FRESH_IDENTITY),
        (120, Verdict.SESSION_FATAL),
    ],
)
def test_with_the_codes_installed_an_answer_keeps_its_meaning(
    code: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "kafka_errors", {**kafka.kafka_errors, **UNNAMED_CODES})
    error = kafka.for_code(code)()
    assert (error.errno, outcome_of(error).verdict) == (code, verdict)
    assert isinstance(error, kafka.UnknownError)
    assert str(code) in str(error)


def test_a_code_nobody_knows_stays_retriable_and_possibly_persisted() -> None:
    assert seen(kafka.for_code(32_000)) == (Verdict.RETRIABLE, POSSIBLY)

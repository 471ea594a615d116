"""What every error means for the batch that met it: one table, no clock, no I/O.

Two questions are answered, and they are independent. The verdict: what does the lane do now? The persisted
status: may the records of this batch be in the log already? An answer of the broker that rejects a batch
before appending it is ``NOT``; whenever the append may have happened and only its acknowledgement is missing,
``POSSIBLY``. Where librdkafka and the broker's code disagree, the table is the stricter one: ``POSSIBLY``
wrongly said costs a lane one fresh identity, ``NOT`` wrongly said loses the next batch as a repeat.

Rules behind the table:

1. An answer about one partition never condemns the session: the other lanes share it. (An answer about the
   request as a whole, its version for example, may.)
2. Permanent is only what the broker said of the records themselves (size, timestamp, contents, policy, topic
   name). What is wrong with the cluster, the topic's configuration or our rights stalls the lane: somebody
   mends it, and a thousand good records are not dead letters meanwhile. So does a timestamp that is refused only
   because its record had to wait: `untimely` tells it from others, since the answer does not.
3. What was never meant for a producer, or comes from below without a name, says nothing: possibly persisted.

An outcome speaks of one answer. aiokafka repeats a batch by itself and shows only the last answer, so whoever
holds the batch keeps ``POSSIBLY`` until it is acknowledged: a batch sent more than once, or left over by
another process, is possibly persisted whatever the last answer says.
"""

from asyncio import CancelledError  # the class alone: nothing here runs on a loop
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from types import MappingProxyType

from aiokafka import errors as kafka

__all__ = [
    "NEWER_EPOCH",
    "OUTCOMES",
    "TOO_LARGE",
    "UNNAMED_CODES",
    "Outcome",
    "Persisted",
    "SilentError",
    "SwallowedError",
    "UntimelyError",
    "Verdict",
    "outcome_of",
]


@unique
class Verdict(Enum):
    """What the lane does with its batch."""

    RETRIABLE = "retriable"
    """Send the same batch again, under the same identity, after a back-off, for ever."""

    PERMANENT = "permanent"
    """The broker refuses the records: halve the batch until the one at fault stands alone."""

    FRESH_IDENTITY = "fresh identity"
    """The lane's identity is lost at the broker: take producer epoch + 1, sequence 0, and send again."""

    SESSION_FATAL = "session fatal"
    """The session cannot be trusted any more: close it hard, build it anew, send the same batch again."""


@unique
class Persisted(Enum):
    """What is known of the broker's log; the values are those of ``DeliveryError.persisted``."""

    NOT = "not"
    POSSIBLY = "possibly"
    PERSISTED = "persisted"
    """In the log. No lane meets it: aiokafka resolves that answer as an acknowledgement without an offset. A batch that
    did would be sent again under its verdict, as possibly persisted, and answered the same: never appended twice."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The meaning of one error; ``reason`` is lower-case text for logs and dead letters."""

    verdict: Verdict
    persisted: Persisted
    reason: str


class InvalidRecordError(kafka.UnknownError):
    """The broker's validation refused a record: a null key in a compacted topic, a schema."""

    errno = 87
    message = "INVALID_RECORD"


class FencedLeaderEpochError(kafka.UnknownError):
    """The client's metadata is older than the leader."""

    errno = 74
    message = "FENCED_LEADER_EPOCH"
    invalid_metadata = True


class UnknownLeaderEpochError(kafka.UnknownError):
    """The client's metadata is newer than the broker's."""

    errno = 75
    message = "UNKNOWN_LEADER_EPOCH"
    invalid_metadata = True


class UnsupportedCompressionTypeError(kafka.UnknownError):
    """The broker, or the version of the request, does not take this compression."""

    errno = 76
    message = "UNSUPPORTED_COMPRESSION_TYPE"


class ThrottlingQuotaExceededError(kafka.UnknownError):
    """A quota is used up for now."""

    errno = 89
    message = "THROTTLING_QUOTA_EXCEEDED"


class ProducerFencedCodeError(kafka.UnknownError):
    """A producer with the same transactional id and a newer epoch exists."""

    errno = 90
    message = "PRODUCER_FENCED"


class TransactionAbortableError(kafka.UnknownError):
    """The transaction must be aborted, the producer may go on (KIP-890)."""

    errno = 120
    message = "TRANSACTION_ABORTABLE"


class SilentError(kafka.RequestTimedOutError):
    """Our own patience with the broker came to its end before ``request_timeout_ms``."""


class UntimelyError(kafka.InvalidTimestampError):
    """Timestamps are refused that were right when their records were accepted (`untimely`)."""


class SwallowedError(kafka.OutOfOrderSequenceNumber):
    """Acknowledged where another batch of the same identity stands: taken for a repeat of that."""


# Codes that aiokafka 0.14 has no class for: all of them become UnknownError and the number is lost, so a
# poison record (87) looks like a broker's accident (-1). The session adds these to aiokafka's table
# (errors.kafka_errors). They are UnknownErrors still, so that nobody's except clause changes its meaning.
UNNAMED_CODES: Mapping[int, type[kafka.BrokerResponseError]] = MappingProxyType(
    {
        kind.errno: kind
        for kind in (
            FencedLeaderEpochError,
            UnknownLeaderEpochError,
            UnsupportedCompressionTypeError,
            InvalidRecordError,
            ThrottlingQuotaExceededError,
            ProducerFencedCodeError,
            TransactionAbortableError,
        )
    },
)

_Errors = tuple[type[BaseException], ...]
_NOT, _POSSIBLY, _PERSISTED = Persisted.NOT, Persisted.POSSIBLY, Persisted.PERSISTED

_RETRIABLE: tuple[tuple[Persisted, str, _Errors], ...] = (
    # Never left this process: no connection, no leader, no room in aiokafka's queue. A batch without a leader
    # expires after request_timeout_ms with LeaderNotAvailable or NotLeaderForPartition (below).
    (
        _NOT,
        "not sent: no connection to a broker",
        (
            kafka.NodeNotReadyError,
            kafka.NoBrokersAvailable,
            kafka.KafkaUnavailableError,
            kafka.StaleMetadata,
            kafka.MetadataEmptyBrokerList,
            kafka.TooManyInFlightRequests,
        ),
    ),
    (_NOT, "not sent: the partition's queue did not empty in time", (kafka.KafkaTimeoutError,)),
    # Refused before the append.
    (
        _NOT,
        "the partition has no leader",
        (
            kafka.LeaderNotAvailableError,
            kafka.BrokerNotAvailableError,
            kafka.ListenerNotFound,
            FencedLeaderEpochError,
            UnknownLeaderEpochError,
        ),
    ),
    (_NOT, "too few replicas are in sync", (kafka.NotEnoughReplicasError,)),
    # Damaged on its way, as the Java client takes it. (Before 2.4 brokers said this of a null key in a
    # compacted topic too: such a lane stalls there.)
    (_NOT, "the batch arrived damaged", (kafka.CorruptRecordException,)),
    (_NOT, "a quota is used up", (ThrottlingQuotaExceededError, kafka.QuotaViolationError)),
    # A session start (InitProducerId), or the broker's own look at a transaction before it appends.
    (
        _NOT,
        "the coordinator is not ready",
        (
            kafka.GroupLoadInProgressError,
            kafka.GroupCoordinatorNotAvailableError,
            kafka.NotCoordinatorForGroupError,
            kafka.NotControllerError,
            kafka.ConcurrentTransactions,
            kafka.OperationNotAttempted,
        ),
    ),
    # Rights stall, they never dead-letter: somebody grants them, and the records are as good as before.
    (
        _NOT,
        "not authorized: grant the right, delivery goes on by itself",
        (
            kafka.TopicAuthorizationFailedError,
            kafka.ClusterAuthorizationFailedError,  # idempotent writes need it on brokers before 2.8
            kafka.GroupAuthorizationFailedError,
            kafka.DelegationTokenAuthorizationFailed,
            kafka.SecurityDisabled,
        ),
    ),
    (
        _NOT,
        "authentication failed: mend the credentials",
        (
            kafka.AuthenticationFailedError,
            kafka.AuthenticationMethodNotSupported,
            kafka.SaslAuthenticationFailed,
            kafka.UnsupportedSaslMechanismError,
            kafka.IllegalSaslStateError,
            kafka.DelegationTokenAuthDisabled,
            kafka.DelegationTokenNotFound,
            kafka.DelegationTokenOwnerMismatch,
            kafka.DelegationTokenRequestNotAllowed,
            kafka.DelegationTokenExpired,
            kafka.InvalidPrincipalType,
        ),
    ),
    # The topic or the broker is configured so that it takes nothing of ours: no record is at fault (rule 2).
    (
        _NOT,
        "the topic does not take batches of this kind: mend its configuration",
        (
            kafka.UnsupportedForMessageFormatError,
            kafka.InvalidRequiredAcksError,
            UnsupportedCompressionTypeError,
        ),
    ),
    (_NOT, "the topic refuses timestamps that were right when the records were accepted", (UntimelyError,)),
    # Sent, and then silence: the records may be in the log.
    (
        _POSSIBLY,
        "no answer came back",
        (
            SilentError,
            kafka.RequestTimedOutError,  # also from the broker: appended, the replicas did not follow in time
            kafka.KafkaConnectionError,
            kafka.KafkaProtocolError,
            kafka.CorrelationIdError,
            kafka.Cancelled,
            kafka.StaleLeaderEpochCodeError,  # 13, which Kafka calls NETWORK_EXCEPTION
        ),
    ),
    (_POSSIBLY, "appended with too few replicas in sync", (kafka.NotEnoughReplicasAfterAppendError,)),
    # With acks=all a broker appends, waits for its replicas, and says these when it loses the partition
    # meanwhile: the new leader may have the records. librdkafka counts them as not persisted.
    (
        _POSSIBLY,
        "the broker does not have the partition (any more)",
        (
            kafka.UnknownTopicOrPartitionError,
            kafka.NotLeaderForPartitionError,
            kafka.KafkaStorageError,
            kafka.ReplicaNotAvailableError,
        ),
    ),
    # The broker's own accident, or a code that has no class here either.
    (_POSSIBLY, "the broker failed without saying why", (kafka.UnknownError,)),
    # The broker had this batch before and remembers no offset for it; aiokafka itself takes it for a success.
    (_PERSISTED, "already in the log", (kafka.DuplicateSequenceNumber,)),
    # Answers to consumers, groups, admins and other brokers. As an answer to a batch they make no sense
    # (rules 1, 3).
    (
        _POSSIBLY,
        "an answer that does not belong to a producer",
        (
            kafka.OffsetOutOfRangeError,
            kafka.InvalidFetchRequestError,
            kafka.StaleControllerEpochError,
            kafka.OffsetMetadataTooLargeError,
            kafka.IllegalGenerationError,
            kafka.InconsistentGroupProtocolError,
            kafka.InvalidGroupIdError,
            kafka.UnknownMemberIdError,
            kafka.InvalidSessionTimeoutError,
            kafka.RebalanceInProgressError,
            kafka.InvalidCommitOffsetSizeError,
            kafka.TopicAlreadyExistsError,
            kafka.InvalidPartitionsError,
            kafka.InvalidReplicationFactorError,
            kafka.InvalidReplicationAssignmentError,
            kafka.InvalidConfigurationError,
            kafka.LogDirNotFound,
            kafka.ReassignmentInProgress,
            kafka.NonEmptyGroup,
            kafka.GroupIdNotFound,
            kafka.FetchSessionIdNotFound,
            kafka.InvalidFetchSessionEpoch,
            kafka.MemberIdRequired,
        ),
    ),
)

TOO_LARGE = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
"""What the broker says of a record or of a whole batch: smaller batches may pass."""

_PERMANENT: tuple[tuple[Persisted, str, _Errors], ...] = (
    # A batch above the topic's limit says it too: halving helps there without a dead letter.
    (_NOT, "too large for the topic", TOO_LARGE),
    (_NOT, "the topic refuses the timestamp", (kafka.InvalidTimestampError,)),
    (_NOT, "the broker's validation refuses the record", (InvalidRecordError, kafka.PolicyViolationError)),
    (_NOT, "the broker refuses the topic's name, or it is an internal topic", (kafka.InvalidTopicError,)),
)

NEWER_EPOCH = (kafka.InvalidProducerEpoch, kafka.ProducerFenced, ProducerFencedCodeError)
"""Somebody else has sent under a later epoch of the same producer id."""

_FRESH_IDENTITY: tuple[tuple[Persisted, str, _Errors], ...] = (
    (_NOT, "the broker expects another sequence", (kafka.OutOfOrderSequenceNumber,)),
    (_NOT, "the broker took the batch for another one", (SwallowedError,)),
    (
        _NOT,
        "the broker does not know this producer id",
        (kafka.UnknownProducerId, kafka.InvalidProducerIdMapping),
    ),
    # aiokafka turns the first into the second. Inside a transaction they end the session, whose sender is
    # dead then.
    (
        _NOT,
        "the broker knows a newer producer epoch",
        NEWER_EPOCH,
    ),
)

_SESSION_FATAL: tuple[tuple[Persisted, str, _Errors], ...] = (
    (_NOT, "the session is closed", (kafka.ProducerClosed, kafka.IllegalOperation)),
    # Versions are negotiated per connection: a new session asks again, which is what a rolling upgrade needs.
    (
        _NOT,
        "client and broker do not understand each other",
        (
            kafka.UnsupportedVersionError,
            kafka.InvalidRequestError,
            kafka.IncompatibleBrokerVersion,
            kafka.UnrecognizedBrokerVersion,
        ),
    ),
    (_NOT, "the client is not set up", (kafka.UnsupportedCodecError, kafka.KafkaConfigurationError)),
    # Only in transactions, where one session does everything and these have already ended its sender.
    (
        _NOT,
        "the transactional id cannot be used",
        (kafka.TransactionalIdAuthorizationFailed, kafka.InvalidTransactionTimeout),
    ),
    (
        _NOT,
        "the transaction is lost",
        (kafka.InvalidTxnState, kafka.TransactionCoordinatorFenced, TransactionAbortableError),
    ),
    # What a dead sender leaves behind ("unexpected error during batch delivery"), and what no producer
    # raises.
    (
        _POSSIBLY,
        "the session failed",
        (
            kafka.KafkaError,
            kafka.BrokerResponseError,
            kafka.NoError,
            kafka.IllegalStateError,
            kafka.IllegalArgumentError,
            kafka.CommitFailedError,
            kafka.ConsumerStoppedError,
            kafka.NoOffsetForPartitionError,
            kafka.RecordTooLargeError,
        ),
    ),
)

OUTCOMES: Mapping[type[BaseException], Outcome] = MappingProxyType(
    {
        kind: Outcome(verdict, persisted, reason)
        for verdict, groups in (
            (Verdict.RETRIABLE, _RETRIABLE),
            (Verdict.PERMANENT, _PERMANENT),
            (Verdict.FRESH_IDENTITY, _FRESH_IDENTITY),
            (Verdict.SESSION_FATAL, _SESSION_FATAL),
        )
        for persisted, reason, kinds in groups
        for kind in kinds
    },
)

# Looked up by inheritance, first match: TimeoutError is an OSError.
_FOREIGN: tuple[tuple[type[BaseException], Outcome], ...] = (
    (
        TimeoutError,
        Outcome(Verdict.SESSION_FATAL, _POSSIBLY, "the session did not answer within our time limit"),
    ),
    (OSError, Outcome(Verdict.SESSION_FATAL, _POSSIBLY, "the operating system failed the session")),
    (
        CancelledError,
        Outcome(Verdict.SESSION_FATAL, _POSSIBLY, "the session was cancelled from outside"),
    ),
    (BaseException, Outcome(Verdict.SESSION_FATAL, _POSSIBLY, "the session failed in an unknown way")),
)


def outcome_of(error: BaseException) -> Outcome:
    """The meaning of ``error`` for the batch that met it, or for the session that raised it at its start.

    Kafka's errors are looked up by their exact class; a class that the table does not name, and everything
    that is not Kafka's, is the session's failure with the batch possibly persisted. ``CancelledError`` must
    be that of the batch's future: a caller that is itself cancelled re-raises instead of asking. Raises
    nothing.
    """
    outcome = OUTCOMES.get(type(error))
    if outcome is not None:
        return outcome
    return next(outcome for kind, outcome in _FOREIGN if isinstance(error, kind))

"""A Kafka cluster inside this process, for tests and demonstrations: librdkafka's mock cluster.

The confluent-kafka wheel carries librdkafka, and librdkafka carries a mock cluster: real sockets on
127.0.0.1, the real wire protocol, C threads that never take the GIL, and switches to make it fail; here they
are called through ctypes. No Java, no Docker, up in milliseconds.

    with MockCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6, replication=3)
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        cluster.broker_down()      # every connection is cut, new ones are refused, the logs are kept
        cluster.broker_up()        # same ports

It is a mock: what it does not do must be tested against a real Kafka.

- Retention: a partition keeps 5 MiB or 100,000 batches, whichever is reached first; the oldest batches go
  without a word and the beginning offset rises. A test that counts records should check that it is still 0.
- The sequence numbers of an idempotent producer without a transactional id are not looked at: a batch that is
  sent again is appended again, and a gap is accepted.
- No fencing: ``InitProducerId`` answers with a fresh producer id each time and an old one goes on working.
- Transactions are accepted but hardly kept: committed offsets of a transaction are not stored, aborted
  records are not filtered, and control batches carry CRC 0 (read such a topic with ``check_crcs=False``).
- ``acks=0`` breaks aiokafka's connection (the mock answers all the same); ``min.insync.replicas`` does not
  exist; a leader does not move by itself when its broker goes down.
- ``CreateTopics``, ``DescribeConfigs`` and ``ListGroups`` are not implemented. A topic that is asked for and
  does not exist is made with 4 partitions. Offsets are not found by time: what was sent before a power cut is not
  found again by ``recovery_check``, and comes twice.
- Everything is in memory and ends with ``close()``. Its cluster id is another one each time, through down and up the
  same: a directory that has delivered to one is refused by the next, as by any other cluster (``cluster_id``).
- The interface is experimental in librdkafka's own words. Tried with confluent-kafka 2.6 and 2.16;
  ``push_partition_errors`` needs 2.15.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import weakref
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from aiorecover.extras import extra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["DISCONNECT", "ApiKey", "MockCluster", "MockRequest"]

# librdkafka's RD_KAFKA_RESP_ERR__TRANSPORT. Pushed as an error it makes the mock broker cut the connection.
DISCONNECT: Final = -195

# From librdkafka's headers.
_PRODUCER = 0  # rd_kafka_type_t
_CONF_OK = 0  # rd_kafka_conf_res_t
_ALL_BROKERS = -1
_NO_LEADER = -1
_ERROR_TEXT_BYTES = 512
# The log of the handle that librdkafka wants beside the cluster: errors only (syslog level 3), to stderr.
_CONFIGURATION = ((b"client.id", b"aiorecover-mock-cluster"), (b"log_level", b"3"))

_pointer = ctypes.c_void_p
_text = ctypes.c_char_p
_error = ctypes.c_int  # rd_kafka_resp_err_t is a C enum

_ARGUMENTS_MAX = 1024  # ctypes passes no more in one call

# name: (result, arguments). For the two variadic functions these are the fixed arguments: naming them is what
# lets ctypes call them right where variadic arguments travel differently (Apple on ARM).
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_conf_new": (_pointer, ()),
    "rd_kafka_conf_set": (ctypes.c_int, (_pointer, _text, _text, _text, ctypes.c_size_t)),
    "rd_kafka_conf_destroy": (None, (_pointer,)),
    "rd_kafka_new": (_pointer, (ctypes.c_int, _pointer, _text, ctypes.c_size_t)),
    "rd_kafka_destroy": (None, (_pointer,)),
    "rd_kafka_err2name": (_text, (_error,)),
    "rd_kafka_err2str": (_text, (_error,)),
    "rd_kafka_mock_cluster_new": (_pointer, (_pointer, ctypes.c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (_pointer,)),
    "rd_kafka_mock_cluster_bootstraps": (_text, (_pointer,)),
    "rd_kafka_mock_topic_create": (_error, (_pointer, _text, ctypes.c_int, ctypes.c_int)),
    "rd_kafka_mock_topic_set_error": (None, (_pointer, _text, _error)),
    "rd_kafka_mock_partition_set_leader": (_error, (_pointer, _text, ctypes.c_int32, ctypes.c_int32)),
    "rd_kafka_mock_broker_set_down": (_error, (_pointer, ctypes.c_int32)),
    "rd_kafka_mock_broker_set_up": (_error, (_pointer, ctypes.c_int32)),
    "rd_kafka_mock_broker_set_rtt": (_error, (_pointer, ctypes.c_int32, ctypes.c_int)),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        (_pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(_error)),
    ),
    "rd_kafka_mock_broker_push_request_error_rtts": (  # variadic: (error, milliseconds) pairs follow
        _error,
        (_pointer, ctypes.c_int32, ctypes.c_int16, ctypes.c_size_t),
    ),
    "rd_kafka_mock_partition_push_request_errors": (  # variadic: errors follow
        _error,
        (_pointer, _text, ctypes.c_int32, ctypes.c_int16, ctypes.c_size_t),
    ),
    "rd_kafka_mock_clear_request_errors": (None, (_pointer, ctypes.c_int16)),
    "rd_kafka_mock_start_request_tracking": (None, (_pointer,)),
    "rd_kafka_mock_get_requests": (
        ctypes.POINTER(_pointer),
        (_pointer, ctypes.POINTER(ctypes.c_size_t)),
    ),
    "rd_kafka_mock_clear_requests": (None, (_pointer,)),
    "rd_kafka_mock_request_destroy_array": (None, (ctypes.POINTER(_pointer), ctypes.c_size_t)),
    "rd_kafka_mock_request_id": (ctypes.c_int32, (_pointer,)),
    "rd_kafka_mock_request_api_key": (ctypes.c_int16, (_pointer,)),
    "rd_kafka_mock_request_timestamp": (ctypes.c_int64, (_pointer,)),
}


class ApiKey(IntEnum):
    """Kafka's numbers of the requests that tests make fail or count."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass(frozen=True, slots=True)
class MockRequest:
    """One request that a mock broker received.

    ``timestamp_us`` is librdkafka's monotonic clock in microseconds: good for differences only.
    """

    broker_id: int
    api_key: int
    timestamp_us: int


class MockCluster:
    """A mock Kafka cluster; ``with MockCluster(brokers=3) as cluster:`` or ``close()`` ends it.

    The cluster is up when the constructor returns. Brokers are numbered from 1. A topic that does not exist
    is made by the first request or method of this class that names it (4 partitions).

    The methods return when the cluster has carried them out; they wait for a C thread (microseconds to
    milliseconds), so an event loop may call them. Use one cluster from one thread at a time. A forked child
    inherits no mock cluster: there, only ``close()`` may be called, and does nothing.

    Every method raises ``RuntimeError`` if librdkafka refuses or the cluster is closed, and ``ValueError``
    for numbers that make no sense.
    """

    def __init__(self, brokers: int = 1) -> None:
        """Start ``brokers`` mock brokers on free ports of 127.0.0.1.

        Raises ``ImportError`` without confluent-kafka, ``RuntimeError`` if librdkafka cannot start them.
        """
        _at_least(1, brokers=brokers)
        library = _library()
        with _signals_blocked():
            handle = _new_handle(library)
            cluster = library.rd_kafka_mock_cluster_new(handle, brokers)
        if not cluster:
            library.rd_kafka_destroy(handle)
            raise RuntimeError(f"the mock cluster did not start; brokers={brokers}")
        self._library = library
        self._cluster: int = cluster
        self._brokers = brokers
        self._bootstrap_servers: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        self._tracking = False
        # Runs once: from close(), when the object is collected, or when the interpreter ends.
        self._finalizer = weakref.finalize(self, _destroy, library, handle, cluster, os.getpid())

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, comma separated; the ports stay the same through down and up."""
        return self._bootstrap_servers

    @property
    def brokers(self) -> int:
        """The number of brokers; their ids are 1 to this number."""
        return self._brokers

    @property
    def closed(self) -> bool:
        """True once ``close()`` was called."""
        return not self._finalizer.alive

    def create_topic(self, topic: str, partitions: int = 1, replication: int = 1) -> None:
        """Make a topic; ``RuntimeError`` if it exists.

        ``replication`` is what the metadata says (1 to ``brokers``); there is one log whatever it is.
        """
        _at_least(1, partitions=partitions, replication=replication)
        if replication > self._brokers:
            raise ValueError(f"more replicas than brokers; replication={replication} brokers={self._brokers}")
        code = self._library.rd_kafka_mock_topic_create(self._open(), topic.encode(), partitions, replication)
        self._check(code, f"create topic {topic!r}")

    def topic_error(self, topic: str, code: int) -> None:
        """From now on answer metadata requests for the topic with Kafka's error ``code``; 0 ends it."""
        self._library.rd_kafka_mock_topic_set_error(self._open(), topic.encode(), code)

    def set_leader(self, topic: str, partition: int, broker_id: int | None) -> None:
        """Move a partition's leader to a broker; None leaves it without a leader. Its records stay."""
        leader = _NO_LEADER if broker_id is None else self._broker_id(broker_id)
        code = self._library.rd_kafka_mock_partition_set_leader(self._open(), topic.encode(), partition, leader)
        self._check(code, f"set the leader of {topic!r}/{partition}")

    def broker_down(self, broker_id: int | None = None) -> None:
        """Cut every connection of a broker (None: of all) and refuse new ones; leaders do not move."""
        code = self._library.rd_kafka_mock_broker_set_down(self._open(), self._broker_id(broker_id))
        self._check(code, "take the broker down")

    def broker_up(self, broker_id: int | None = None) -> None:
        """Let a broker (None: all) accept connections again, on the same port and with its records."""
        code = self._library.rd_kafka_mock_broker_set_up(self._open(), self._broker_id(broker_id))
        self._check(code, "bring the broker up")

    def round_trip_ms(self, ms: int, broker_id: int | None = None) -> None:
        """Hold back each answer of a broker (None: of all) until ``ms`` after its request; 0 ends it."""
        _at_least(0, ms=ms)
        code = self._library.rd_kafka_mock_broker_set_rtt(self._open(), self._broker_id(broker_id), ms)
        self._check(code, "set the round trip time")

    def push_errors(self, api_key: int, *codes: int) -> None:
        """Answer the next ``len(codes)`` requests of this kind, on any broker, with these errors, in turn.

        0 lets a request pass; ``DISCONNECT`` cuts the connection instead of answering. A produce request that
        is answered with an error is not appended.
        """
        array = (_error * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._open(), api_key, len(codes), array)

    def push_broker_errors(self, broker_id: int, api_key: int, *codes_and_ms: tuple[int, int]) -> None:
        """Like ``push_errors`` for one broker, each error with the milliseconds it is held back.

        Errors of a broker go before errors pushed for all. At most 510 in one call.
        """
        _at_most((_ARGUMENTS_MAX - 4) // 2, len(codes_and_ms))
        flat = [_error(number) for pair in codes_and_ms for number in pair]
        code = self._library.rd_kafka_mock_broker_push_request_error_rtts(
            self._open(), self._broker_id(broker_id), api_key, len(codes_and_ms), *flat
        )
        self._check(code, f"push errors for broker {broker_id}")

    def push_partition_errors(self, topic: str, partition: int, api_key: int, *codes: int) -> None:
        """Like ``push_errors`` for one partition (produce and fetch); the other partitions are answered well.

        They cannot be cleared: ``clear_errors`` is for those of ``push_errors``. At most 1019 in one call. Needs
        confluent-kafka 2.15.
        """
        _at_most(_ARGUMENTS_MAX - 5, len(codes))
        code = self._library.rd_kafka_mock_partition_push_request_errors(
            self._open(),
            topic.encode(),
            partition,
            api_key,
            len(codes),
            *[_error(number) for number in codes],
        )
        self._check(code, f"push errors for {topic!r}/{partition}")

    def clear_errors(self, api_key: int) -> None:
        """Forget the errors of ``push_errors`` for this kind of request that were not given yet."""
        self._library.rd_kafka_mock_clear_request_errors(self._open(), api_key)

    def track_requests(self) -> None:
        """Keep a note of every request from now on, for ``requests()``; it grows until it is cleared."""
        self._library.rd_kafka_mock_start_request_tracking(self._open())
        self._tracking = True

    def requests(self, *, clear: bool = False) -> list[MockRequest]:
        """Return the requests that the brokers received since ``track_requests()``, oldest first.

        ``clear`` empties the list afterwards; a request that arrives between the two is lost from it.
        """
        cluster = self._open()
        if not self._tracking:
            raise RuntimeError("requests are not tracked: call track_requests() first")
        count = ctypes.c_size_t()
        array = self._library.rd_kafka_mock_get_requests(cluster, ctypes.byref(count))
        try:
            found = [self._request(array[i]) for i in range(count.value)]
        finally:
            self._library.rd_kafka_mock_request_destroy_array(array, count.value)
        if clear:
            self._library.rd_kafka_mock_clear_requests(cluster)
        return found

    def close(self) -> None:
        """End the cluster and free its ports; calling it again does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        """Return the cluster, which is up already."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cluster."""
        self.close()

    def _open(self) -> int:
        """Return librdkafka's pointer; a freed one must never reach C."""
        if self.closed:
            raise RuntimeError("the mock cluster is closed")
        return self._cluster

    def _broker_id(self, broker_id: int | None) -> int:
        if broker_id is None:
            return _ALL_BROKERS
        # Checked here because librdkafka takes -1 for "all".
        if not 1 <= broker_id <= self._brokers:
            raise ValueError(f"no such broker, the ids are 1 to {self._brokers}; broker_id={broker_id}")
        return broker_id

    def _request(self, pointer: int) -> MockRequest:
        return MockRequest(
            broker_id=self._library.rd_kafka_mock_request_id(pointer),
            api_key=self._library.rd_kafka_mock_request_api_key(pointer),
            timestamp_us=self._library.rd_kafka_mock_request_timestamp(pointer),
        )

    def _check(self, code: int, action: str) -> None:
        if code:
            name = self._library.rd_kafka_err2name(code).decode()
            text = self._library.rd_kafka_err2str(code).decode()
            raise RuntimeError(f"the mock cluster could not {action}: {text}; error={name} code={code}")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block all signals for the threads that are started inside: one that interrupts the mock's poll ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _library() -> ctypes.CDLL:
    """Load librdkafka with the argument and result types of every function that is used here."""
    with extra("demo"):
        from confluent_kafka import cimpl  # noqa: PLC0415 - an optional dependency, needed only here
    # The extension module is linked with librdkafka, bundled or the system's, and a look-up in a module goes
    # on in what it is linked with: no need to know where a wheel keeps its libraries.
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            # An older librdkafka: everything else works.
            setattr(library, name, functools.partial(_not_there, name))
            continue
        function.restype = result
        function.argtypes = arguments
    return library


def _not_there(name: str, *_arguments: object) -> NoReturn:
    raise RuntimeError(f"this confluent-kafka is too old: pip install -U confluent-kafka; missing={name}")


def _new_handle(library: ctypes.CDLL) -> int:
    """Make the librdkafka client that a mock cluster hangs on; it connects to nothing."""
    text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
    configuration = library.rd_kafka_conf_new()
    for name, value in _CONFIGURATION:
        if library.rd_kafka_conf_set(configuration, name, value, text, len(text)) != _CONF_OK:
            library.rd_kafka_conf_destroy(configuration)
            raise RuntimeError(f"librdkafka refused a setting: {text.value.decode()}; name={name.decode()}")
    handle = library.rd_kafka_new(_PRODUCER, configuration, text, len(text))
    if not handle:
        # The configuration belongs to librdkafka only once a handle was made of it.
        library.rd_kafka_conf_destroy(configuration)
        raise RuntimeError(f"librdkafka did not start: {text.value.decode()}")
    return int(handle)


def _destroy(library: ctypes.CDLL, handle: int, cluster: int, owner_pid: int) -> None:
    """Free the cluster, then the handle it hangs on."""
    # A forked child has the memory but not the threads: waiting for them would never end.
    if os.getpid() == owner_pid:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(handle)


def _at_most(errors: int, given: int) -> None:
    if given > errors:
        raise ValueError(f"{errors} errors at most in one call: call it again for the others; given={given}")


def _at_least(minimum: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < minimum:
            raise ValueError(f"must be at least {minimum}; {name}={number}")

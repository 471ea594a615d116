"""Every error that aiorecover raises, in one tree.

::

    RecoverError
    ├── ConfigError(ValueError)             the options are wrong: mend them, nothing was started
    ├── ClosedError                         not started, stopped, or a forked child
    ├── EncodeError(TypeError)              this record cannot become a Kafka record: mend the record
    ├── WalError                            the write-ahead log on disk
    │   ├── WalLockedError                  another process has the directory
    │   ├── WalFullError                    the disk threshold is reached: nothing was stored
    │   ├── RecordTooLargeError             one record above the limit: nothing was stored
    │   ├── WalFormatError                  not a directory of ours, or written by a newer version
    │   ├── WalCorruptError                 a file is damaged beyond what recovery may repair by itself
    │   ├── WalDestinationError             the directory belongs to another cluster or another name
    │   └── WalIOError(OSError)             the operating system refused: errno is kept
    └── DeliveryError(aiokafka KafkaError)  what Kafka said of a record that was accepted
        ├── DeliveryPendingError            not settled in time: it is in the ring
        └── PermanentDeliveryError          Kafka will never take it as it is, or the disk lost it

A type exists only where a caller would act differently. Messages are lower case, say what to do, and end in
``key=value`` pairs.
"""

from aiokafka.errors import KafkaError


class RecoverError(Exception):
    """Base of every error of this package."""


class ConfigError(RecoverError, ValueError):
    """An option, or a time limit, is unknown, of the wrong type, out of range or in conflict with another one."""


class ClosedError(RecoverError):
    """The producer is not started, is stopped, or belongs to the parent of this forked process."""


class EncodeError(RecoverError, TypeError):
    """A topic, key, value, partition, timestamp or header that cannot become a Kafka record.

    Nothing was stored; the producer goes on.
    """


class WalError(RecoverError):
    """Base of the errors of the write-ahead log."""


class WalLockedError(WalError):
    """Another process holds the directory that was asked for by name."""


class WalFullError(WalError):
    """The disk threshold is reached and the record was not stored.

    Records accepted before are unharmed; delivery frees space, and accepting goes on by itself.
    """


class RecordTooLargeError(WalError):
    """The record is above ``max_request_size``, or fits no segment of the ring; it was not stored."""


class WalFormatError(WalError):
    """The path is no write-ahead log of ours, or a newer version of aiorecover wrote it."""


class WalCorruptError(WalError):
    """A file is damaged where recovery may not guess; nothing was changed."""


class WalDestinationError(WalError):
    """The directory holds records for another cluster, or another ``name``; nothing was delivered."""


class WalIOError(WalError, OSError):
    """The operating system refused a file operation; ``errno`` and ``filename`` are kept."""


class DeliveryError(RecoverError, KafkaError):
    """An accepted record did not reach Kafka (yet); also a ``KafkaError`` for code written for aiokafka.

    ``persisted`` says whether the record may be in Kafka all the same: ``"not"`` (it was not sent, or each attempt
    was answered with a refusal that comes before anything is appended), or ``"possibly"`` (one had no answer, or one
    that a broker also gives after it has appended). Never ``"persisted"``: what is known to be there is delivered.
    """

    def __init__(self, message: str = "", *, persisted: str = "possibly") -> None:
        super().__init__(message)
        self.persisted = persisted

    def __str__(self) -> str:
        """The message alone; aiokafka's errors put the class before it."""
        return RuntimeError.__str__(self)


class DeliveryPendingError(DeliveryError):
    """The time limit passed before the record was settled. It is in the ring: do not publish it again.

    ``persisted`` is ``"possibly"`` then, also of what was not sent yet: it may be at any moment.

    The message says what holds it up, as far as that is known at the moment: Kafka is not reached or is another
    cluster, the topic is not known, the partition does not get through, with the last error; or nothing is wrong, and
    it takes its turn. A record after one that halted its lane gets this error at once: the next start delivers it.
    """


class PermanentDeliveryError(DeliveryError):
    """Kafka will never take the record: it is a dead letter, or damage took it from the disk.

    Under ``on_permanent_error="halt"`` the record that Kafka refused stays in the ring, and the next start tries it
    again; `flush` raises this, too, once all other lanes are delivered.
    """

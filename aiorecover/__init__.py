"""aiorecover: the asyncio producer for Kafka that does not lose records."""

import platform

if platform.system() != "Linux":  # before anything is imported that other systems lack
    raise ImportError(
        f"aiorecover needs Linux, and this is {platform.system()}: run it in a container or a virtual machine; "
        'a project for several systems requires it as aiorecover; sys_platform == "linux"'
    )

from aiorecover.dead_letters import DeadLetter, DeadLetters
from aiorecover.deduplicator import Deduplicator
from aiorecover.errors import (
    ClosedError,
    ConfigError,
    DeliveryError,
    DeliveryPendingError,
    EncodeError,
    PermanentDeliveryError,
    RecordTooLargeError,
    RecoverError,
    WalCorruptError,
    WalDestinationError,
    WalError,
    WalFormatError,
    WalFullError,
    WalIOError,
    WalLockedError,
)
from aiorecover.log import guard
from aiorecover.producer import RecoverableProducer
from aiorecover.receipt import DeliveryReport, Receipt
from aiorecover.record_id import record_id_of
from aiorecover.statistics import Statistics

__version__ = "0.2.0"

guard()

__all__ = [
    "ClosedError",
    "ConfigError",
    "DeadLetter",
    "DeadLetters",
    "Deduplicator",
    "DeliveryError",
    "DeliveryPendingError",
    "DeliveryReport",
    "EncodeError",
    "PermanentDeliveryError",
    "Receipt",
    "RecordTooLargeError",
    "RecoverError",
    "RecoverableProducer",
    "Statistics",
    "WalCorruptError",
    "WalDestinationError",
    "WalError",
    "WalFormatError",
    "WalFullError",
    "WalIOError",
    "WalLockedError",
    "record_id_of",
]

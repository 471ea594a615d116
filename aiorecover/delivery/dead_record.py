"""A record that becomes a dead letter: its letter is durable, and nobody was told of it yet. Pure."""

from typing import NamedTuple

from aiorecover.delivery.frames import Named
from aiorecover.delivery.refusal import Refusal


class DeadRecord(NamedTuple):
    """What is told of it, before it is settled; ``topic``: empty where nothing tells; ``partition``: as its letter."""

    named: Named
    topic: str
    partition: int | None
    refusal: Refusal

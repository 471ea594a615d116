"""The oracle of the faults: it stands outside the library and knows of each record what became of it by its id.

`accepted`: `publish` returned. `refused`: it raised, and said that nothing was stored. `unsure`: it raised when the
record was stored already and only the flush behind it failed (``fsync="always"``): such a record may be there, once.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiorecover import RecoverableProducer, RecoverError
from aiorecover.cli.inspection import inspect
from tests.support.oracle import Accepted, judge, read_topic

__all__ = ["NOWHERE", "SMALL", "TOPIC", "Ledger", "told"]

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOPIC = "faults"
SLOT = 16 * 1024
SMALL: dict[str, Any] = {
    "slot_bytes": SLOT,
    "max_request_size": 8192,
    "max_batch_size": 8192,
    "wal_min_free_bytes": 0,
    "checkpoint_interval_ms": 50,
    "fsync_interval_ms": 10,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 200,
    "stop_timeout_ms": 20_000,
    # By name: a stop that has no time leaves the closing to its thread, and the next start has to wait for that.
    "instance": "0",
    "full_timeout_ms": 20_000,
}
_KEYS = 3
_REMEDIES = re.compile(
    r"\b(free|lower|raise|stop|start|wait|choose|restore|use|check|mend|upgrade|reopen|make|open the directory again)\b"
)


def told(error: BaseException) -> str:
    """The text of an error, which is of our tree, in our form and says what to do."""
    assert isinstance(error, RecoverError), repr(error)
    text = str(error)
    assert len(text.splitlines()) == 1, text
    assert text[0].islower() or text.startswith("[Errno"), text
    assert _REMEDIES.search(text), f"it does not say what to do: {text}"
    return text


@dataclass
class Ledger:
    """What was accepted, refused, or neither; every attempt has a value of its own."""

    accepted: list[Accepted] = field(default_factory=list)
    refused: list[tuple[bytes, RecoverError]] = field(default_factory=list)
    unsure: list[bytes] = field(default_factory=list)
    attempts: int = 0

    async def publish(
        self, producer: RecoverableProducer, *, size: int = 1000, topic: str = TOPIC, partition: int | None = None
    ) -> RecoverError | None:
        """Publish one record; the error if it was refused. ``partition``: with a key of its own."""
        number = self.attempts
        self.attempts += 1
        key = b"%d" % (number % _KEYS) if partition is None else b"to %d" % partition
        value = b"%06d " % number + b"x" * size
        before = producer.statistics().accepted
        try:
            receipt = await producer.publish(topic, value, key=key, partition=partition)
        except RecoverError as error:
            told(error)
            if producer.statistics().accepted == before:
                self.refused.append((value, error))
            else:
                self.unsure.append(value)
            return error
        self.accepted.append(Accepted(receipt.record_id, key, value))
        return None

    async def publish_all(self, producer: RecoverableProducer, count: int) -> None:
        """So many, each of which must be accepted."""
        for _ in range(count):
            error = await self.publish(producer)
            assert error is None, repr(error)

    async def publish_until_refused(self, producer: RecoverableProducer, limit: int = 2000) -> RecoverError:
        """Until the first refusal, which it returns."""
        for _ in range(limit):
            if (error := await self.publish(producer)) is not None:
                return error
        raise AssertionError(f"nothing was refused within {limit} records")

    async def publish_until_refused_or(self, producer: RecoverableProducer, limit: int) -> None:
        """At most so many, or until the first refusal."""
        for _ in range(limit):
            if await self.publish(producer) is not None:
                return

    def check_counts(self, producer: RecoverableProducer) -> None:
        """I9: the producer's own figures add up, and agree with this ledger for records of this epoch."""
        figures = producer.statistics()
        sources = figures.accepted + figures.recovered
        assert sources == figures.delivered + figures.dead_lettered + figures.lost + figures.pending, figures
        life = f"{producer.producer_id}/{figures.epoch}/"
        mine = sum(1 for record in self.accepted if record.record_id.startswith(life))
        assert mine <= figures.accepted <= mine + len(self.unsure), (figures, mine)

    async def check_kafka(self, servers: str, *, repeats: bool = False, missing: int = 0) -> None:
        """Everything accepted is in Kafka, whole, in order, once; nothing refused is; of the unsure at most one each.

        ``missing``: so many records were named as lost.
        """
        consumed = await read_topic(servers, TOPIC)
        verdict = judge(self.accepted, consumed)
        assert len(verdict.missing) == missing, verdict
        assert [*verdict.out_of_order, *verdict.wrong, *verdict.scattered] == [], verdict
        assert repeats or verdict.repeated == 0, verdict
        self._check_others(Counter(record.value for record in consumed), repeats=repeats)

    def check_directory(self, wal: Path) -> list[Any]:
        """As `check_kafka`, for the records that wait in a directory which nobody has open; what it reports as lost."""
        (home,) = inspect(wal, 1 << 20)
        values = [record["value"] for record in home["records"] if record["ring"] == "ring"]
        damage = [part for ring in home["rings"] for part in ring["damage"]]
        assert not home["error"], home
        accepted = [record.value for record in self.accepted]
        lost = sum(ring["missing"] for ring in home["rings"])
        found = [value for value in values if value in set(accepted)]
        assert found == [value for value in accepted if value in set(found)], "order or number"
        assert len(accepted) - len(found) <= lost, (len(accepted), len(found), damage)
        self._check_others(Counter(values), repeats=False)
        return damage

    def _check_others(self, found: Counter[Any], *, repeats: bool) -> None:
        for value, error in self.refused:
            assert found[value] == 0, f"refused and there all the same: {value[:6]!r} {error!r}"
        mine = {record.value for record in self.accepted}
        others = {value: count for value, count in found.items() if value not in mine}
        assert set(others) <= set(self.unsure), f"nobody published these: {set(others) - set(self.unsure)}"
        assert repeats or all(count == 1 for count in others.values()), others

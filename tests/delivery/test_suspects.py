"""Suspect records beside topics that are not known yet: each is judged once, and none is settled before its turn."""

import asyncio
from functools import partial

import pytest

from aiorecover import record as rec
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.in_kafka import InKafka, content_of
from aiorecover.delivery.partitioner import partition_for
from aiorecover.delivery.reports import Reports
from aiorecover.delivery.router import Router
from aiorecover.wal import format as fmt
from aiorecover.wal.stream import Stream
from tests.wal.rig import Opened, found

pytestmark = pytest.mark.asyncio


def encoded(topic: str, key: bytes | None, value: bytes) -> bytes:
    return rec.encode((topic, key, value, None, 1, None, None, None))


class After:
    """A power cut took nothing; the next life knows topic x, and not yet topic t."""

    def __init__(self, opened: Opened):
        disk = opened.disk.after_death()
        disk.boots += 1  # every settle word is suspect
        self.opened = Opened(disk)
        self.known: dict[str, set[int]] = {"x": {0}}
        self.router = Router(self._partitions, self._partitions, lambda _: None, None)
        self.in_kafka = InKafka(fmt.directory_of(self.opened.ring.producer_id), self.opened.ring.epoch)
        self.dispatcher = Dispatcher(
            Stream(self.opened.directory, rec.decode),
            self.router,
            codec=0,
            batch_bytes=16 * 1024,
            linger=0.0,
            answered=lambda _: True,
            deliver=lambda _: None,
            refuse=lambda *_: None,
            undecodable=lambda *_: False,
            on_idle=lambda: None,
            expiry=Expiry(
                DeadLetters(self.opened.directory.dead, sync=partial(asyncio.sleep, 0)),
                Reports(self.opened.directory, None),
                limit_ms=None,
                expired=lambda: 0,
                topic=None,
                floor=0,
                doubtful_up_to=0,
                on_change=lambda: None,
            ),
            holds=lambda _: False,
            in_kafka=self.in_kafka,
        )

    def _partitions(self, topic: str) -> frozenset[int]:
        return frozenset(self.known.get(topic, ()))

    def learn(self) -> None:
        self.known["t"] = {0}
        self.router.refresh()
        self.dispatcher.start_catching_up()

    def go_on(self) -> None:
        while self.dispatcher.step():
            pass

    def dispatched(self, topic: str) -> int:
        lane = self.router.topics[topic].lanes.get(0)
        return lane.open.count if lane is not None and lane.open is not None else 0


async def test_a_settled_record_behind_one_that_waits_for_its_topic_is_dismissed_once() -> None:
    """Dismissed twice it would free the slot, and with it the record that waits."""
    opened = Opened()
    opened.append(encoded("t", b"k", b"waits"), encoded("t", None, b"settled"))
    opened.fill_slot(encoded("x", b"k", b"X"))
    entries = opened.read()
    opened.append(encoded("x", b"k", b"X"))
    opened.settle(entries[1:])
    opened.directory.sync()
    opened.checkpoint()
    after = After(opened)
    after.go_on()
    after.learn()
    after.go_on()
    slot = after.opened.ring.live[0]
    assert (after.dispatched("t"), slot.unsettled, slot.done) == (1, 1, False)
    assert after.opened.checkpoint() == 0
    left = [rec.decode(memoryview(payload)) for _, payload in found(after.opened.dies().read())]
    assert [record[rec.VALUE] for record in left][:1] == [b"waits"]


async def test_what_is_held_for_want_of_room_is_judged_when_its_topic_is_known() -> None:
    opened = Opened()
    opened.append(encoded("x", b"k", b"waits"), encoded("t", b"k", b"old"), encoded("t", b"k", b"new"))
    opened.settle(opened.read()[1:])
    opened.directory.sync()
    after = After(opened)
    after.dispatcher.batches.closed_bytes = batches_module.BATCH_BYTES
    for _ in range(3):
        after.dispatcher.step()
    after.learn()
    after.dispatcher.batches.closed_bytes = 0
    after.go_on()
    await asyncio.sleep(0)
    assert (after.dispatched("x"), after.dispatched("t")) == (1, 0)
    assert after.opened.ring.pending() == 1


async def test_what_was_found_in_a_stalled_partition_waits_for_it_and_holds_up_nobody() -> None:
    """It is told of and settled in its lane; sent again, elsewhere, it would be a repeat."""
    opened = Opened()
    opened.append(encoded("x", None, b"found"), encoded("x", b"k", b"waits"))
    opened.directory.sync()
    after = After(opened)
    after.known["x"] = {0, 1}
    name = f"{opened.directory.producer_id}/{opened.ring.epoch}/1".encode()
    after.in_kafka.note(("x", 1), 7, name, content_of(None, b"found"))
    after.in_kafka.read_up()
    for partition in (0, 1):  # whichever the key leads to, nothing more is asked of it than room
        after.router.resumed("x", partition)
    stalled = after.router.topics["x"].lanes[1]
    stalled.stalled = True
    after.go_on()
    assert len(after.dispatcher._gaps) >= 1
    assert stalled.open is None
    assert after.dispatcher._held is None
    after.dispatcher.start_catching_up()
    after.go_on()
    assert len(after.dispatcher._gaps) >= 1
    stalled.stalled = False
    after.dispatcher.start_catching_up()
    after.go_on()
    assert len(after.dispatcher._gaps) == 0
    lanes = [lane.open for lane in after.router.topics["x"].lanes.values() if lane.open is not None]
    assert [batch.count for batch in lanes if batch.found_at == 7] == [1]
    assert sum(batch.count for batch in lanes) == 2


async def test_a_topic_that_becomes_known_does_not_wait_whole_for_one_stalled_lane() -> None:
    opened = Opened()
    keys = {partition_for(b"%d" % number, 2): b"%d" % number for number in range(20)}
    opened.append(*(encoded("t", keys[number % 2], b"%d" % number) for number in range(10)))
    opened.directory.sync()
    after = After(opened)
    after.go_on()
    after.known["t"] = {0, 1}
    stalled = after.router.resumed("t", 0)
    stalled.stalled = True
    after.router.refresh()
    after.dispatcher.start_catching_up()
    after.go_on()
    other = after.router.topics["t"].lanes[1]
    assert other.added == 5
    assert stalled.added == 0
    stalled.stalled = False
    after.dispatcher.start_catching_up()
    after.go_on()
    assert (stalled.added, other.added) == (5, 5)

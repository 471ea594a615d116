"""A signal handler may publish while the loop publishes, settles, reads or recycles.

The tests go through every place where CPython may run a handler (`tests.wal.interruption`), one by one; the last two
use a real timer.
"""

import errno
import gc
import inspect
import random
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import ring
from aiorecover.wal.ring import RECENT, Ring
from aiorecover.wal.run import Entry
from aiorecover.wal.slot import Slot
from tests.wal import interruption
from tests.wal.interruption import Interruption
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, take

# -- what is interrupted ---------------------------------------------------------------------------------------------


class Scenario:
    """A prepared ring, and one action on it."""

    spare: str = "allocated"  # where the next slot comes from: allocated, prepared, recycled
    nearly_full = True

    def __init__(self) -> None:
        self.opened = Opened(Disk(max_slots=500))
        opened = self.opened
        if self.spare == "recycled":
            while len(opened.ring.live) < 4:
                opened.append(b"o" * 700)
            opened.settle(opened.read())
            assert opened.checkpoint() == 3
            opened.accepted.clear()
        opened.append(b"first")
        if self.nearly_full:
            for size in (1900, 100):  # at last there is room for small records, and for none of 150 bytes
                while opened.ring.live[-1].limit - opened.ring.live[-1].tail > size + 80:
                    opened.append(b"f" * size)
        if self.spare == "prepared":
            opened.ring.prepare_spare()
        self.handed: list[Entry] = []  # what the reader has given
        self.settled: set[Position] = set()

    def act(self) -> None:
        """Publish one record."""
        self.opened.append(b"m" * 150)


class Fits(Scenario):
    nearly_full = False


class RollsAllocated(Scenario):
    pass


class RollsPrepared(Scenario):
    spare = "prepared"


class RollsRecycled(Scenario):
    spare = "recycled"


class Settles(Scenario):
    """Everything that was read, at once, as for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = self.opened.read()

    def act(self) -> None:
        self.settled |= {position for position, _ in found(self.handed)}
        self.opened.ring.settle(self.handed[0][0], [place for _, place, _, _ in self.handed])


class Checkpoints(Scenario):
    """Several slots are settled, one is written: capture, flush, recycle."""

    def __init__(self) -> None:
        super().__init__()
        while len(self.opened.ring.live) < 4:
            self.opened.append(b"o" * 700)
        self.handed = self.opened.read()
        self.settled |= {position for position, _ in found(self.handed)}
        self.opened.settle(self.handed)

    def act(self) -> None:
        self.opened.checkpoint()


class Reads(Scenario):
    """From memory and over the end of a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = self.opened.read()
        self.opened.append(b"in the slot at hand", b"read from the file" * 200, b"from memory", b"from memory")

    def act(self) -> None:
        while taken := take(self.opened.reader, 3):
            self.handed += taken


class ReadsMemory(Scenario):
    """One run of records that are all in memory, in a slot that is nearly full."""

    def act(self) -> None:
        self.handed += take(self.opened.reader, 100)


class ReadsBacklog(Scenario):
    """What the process before left, in a slot that it sealed and in one that it did not."""

    def __init__(self) -> None:
        self.opened = _left_behind().dies()
        self.handed = []
        self.settled = set()

    def act(self) -> None:
        while taken := take(self.opened.reader, 100):
            self.handed += taken


@cache
def _left_behind() -> Opened:
    """By a process that dies as often as one is needed."""
    opened = Fits().opened
    opened.append(b"second", b"third", b"n" * 9000)
    settled = opened.read()[::2]
    opened.settle(settled)
    for position, _ in found(settled):
        del opened.accepted[position]
    opened.append(b"n" * 9000)
    return opened


SCENARIOS = [Fits, RollsAllocated, RollsPrepared, RollsRecycled, Settles, Checkpoints, Reads, ReadsBacklog]


class Small:
    """A handler that publishes one small record."""

    def __init__(self, opened: Opened):
        self.opened = opened

    def __call__(self) -> None:
        self.opened.append(b"handler")


class Rolls(Small):
    """A handler that publishes so much that it needs several slots."""

    def __call__(self) -> None:
        self.opened.append(*[b"h" * 6000] * 5)


def verify(opened: Opened, expected: dict[Position, bytes]) -> None:
    """The next process finds exactly these, in order, and nothing is missing."""
    got = found(opened.read())
    assert got == sorted(expected.items())
    assert missing(opened.ring) == []
    assert opened.ring.damaged_slots == []


def every_place(scenario: Callable[[], Scenario]) -> Iterator[int]:
    """One number for each place where the action can be interrupted."""
    made = scenario()
    with Interruption(lambda: None, 0) as dry:
        made.act()
    assert dry.count > 5
    yield from range(1, dry.count + 1)


@pytest.mark.parametrize("handler", [Small, Rolls])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_handler_that_publishes_at_any_place_harms_nothing(scenario: type[Scenario], handler: type[Small]) -> None:
    harms_nothing(scenario, handler)


def harms_nothing(scenario: type[Scenario], handler: type[Small]) -> None:
    """Neither for this process nor for the next one."""
    for at in every_place(scenario):
        made = scenario()
        opened = made.opened
        with Interruption(handler(opened), at):
            made.act()
        waiting = {position: record for position, record in opened.accepted.items() if position not in made.settled}
        assert opened.ring.pending() == len(waiting), at
        assert opened.ring.accepted == opened.ring.sequence
        for slot in opened.ring.live:
            assert not slot.sealed or slot.count == slot.last_sequence - slot.header.first_sequence + 1, at
        verify(opened.dies(), waiting)
        opened.append(b"and on", b"g" * 5000)
        opened.read()
        slots = opened.ring.live
        assert [slot.header.ordinal for slot in slots] == sorted({slot.header.ordinal for slot in slots}), at
        entries = [entry for slot in slots for entry in _waiting_in(opened, slot)]
        assert {position for position, _ in found(entries)} == set(opened.accepted) - made.settled, at
        opened.settle(entries)
        opened.checkpoint()
        assert opened.ring.bytes_used == SLOT, at
        verify(opened.dies(), {})


def _waiting_in(opened: Opened, slot: Slot) -> list[Entry]:
    """What a reader finds that begins at this slot, in this slot."""
    second = opened.reader.behind(slot, fmt.FIRST_FRAME // 4 + 4, slot.header.first_sequence)
    entries = []
    while taken := take(second, 100):
        entries += [entry for entry in taken if entry[0] is slot]
    second.close()
    return entries


# -- the rule that this rests on, taken away: tail and sequence are advanced before the first byte is stored -----------

TAIL, SEQUENCE = ("        slot.tail = end\n", "        self._sequence = sequence\n")
STORE = "            store(slot.map, start, length, check, sequence, slot.open_word, payload)\n"


@pytest.mark.parametrize("late", [TAIL, SEQUENCE, TAIL + SEQUENCE], ids=["tail", "sequence", "both"])
def test_what_is_advanced_behind_the_store_lets_a_handler_overwrite_or_repeat(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = textwrap.indent(textwrap.dedent(late), " " * 12)
    as_it_is, fault = rewritten(Ring.append, {}), rewritten(Ring.append, {late: "", STORE: STORE + behind})
    monkeypatch.setattr(interruption, "_codes", cache(interruption._codes.__wrapped__))
    monkeypatch.setattr(Ring, "append", as_it_is)
    harms_nothing(Fits, Small)
    monkeypatch.setattr(interruption, "_codes", cache(interruption._codes.__wrapped__))
    monkeypatch.setattr(Ring, "append", fault)
    with pytest.raises(AssertionError):
        harms_nothing(Fits, Small)


def rewritten(function: Callable[..., Any], changes: dict[str, str]) -> Any:
    """The same with some of its lines changed; it counts as code of its file, so a handler is run at its places."""
    source = inspect.getsource(function)
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    code = compile(textwrap.dedent(source), function.__code__.co_filename, "exec")
    exec(code, function.__globals__, made)  # noqa: S102 - our own code
    return made[function.__name__]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_reader_that_goes_on_gets_what_a_handler_published(scenario: type[Scenario]) -> None:
    for at in every_place(scenario):
        made = scenario()
        with Interruption(Rolls(made.opened), at):
            made.act()
        assert found(made.handed + made.opened.read(5)) == sorted(made.opened.accepted.items()), at
        assert missing(made.opened.ring) == []


@pytest.mark.parametrize("records", [[b"over the end of the slot" * 6] * 20, [b"all"] * (RECENT + 1)])
def test_a_handler_that_replaces_what_is_in_memory_while_it_is_copied_harms_nothing(records: list[bytes]) -> None:
    for at in every_place(ReadsMemory):
        made = ReadsMemory()
        with Interruption(lambda opened=made.opened: opened.append(*records), at):  # type: ignore[misc]
            made.act()
        assert found(made.handed + made.opened.read(1000)) == sorted(made.opened.accepted.items()), at
        assert missing(made.opened.ring) == []


@pytest.mark.parametrize("handler", [Small, Rolls])
@pytest.mark.parametrize("scenario", [Fits, RollsAllocated, RollsPrepared, RollsRecycled])
def test_death_in_a_handler_at_any_place_costs_nothing_that_was_accepted(
    scenario: type[Scenario], handler: type[Small]
) -> None:
    """What the handler interrupted may be there or not: it was not accepted yet."""
    for at in every_place(scenario):
        made = scenario()
        opened = made.opened
        left: list[tuple[Disk, dict[Position, bytes]]] = []

        def publish_and_die(opened: Opened = opened, left: list[Any] = left) -> None:
            handler(opened)()
            left.append((opened.disk.after_death(), opened.accepted.copy()))

        with Interruption(publish_and_die, at):
            made.act()
        (disk, accepted), *_ = left
        with Opened(disk) as following:
            got = dict(found(following.read()))
            extra = got.keys() - accepted.keys()
            assert len(extra) <= 1, at
            assert {position: record for position, record in got.items() if position not in extra} == accepted, at
            lost = set(missing(following.ring))
            assert lost <= set(opened.accepted) - set(got), at  # at most the one that was being stored
            assert len(lost) <= 1, at
            following.append(b"goes on")
            assert found(following.read()) == [((2, 1), b"goes on")], at


class _InterruptedError(BaseException):
    """What a handler raises."""


@pytest.mark.parametrize("scenario", [Fits, RollsAllocated, RollsPrepared, RollsRecycled])
def test_a_handler_that_raises_at_any_place_leaves_the_record_out_and_the_ring_whole(
    scenario: type[Scenario],
) -> None:
    def raise_it() -> None:
        raise _InterruptedError

    for at in every_place(scenario):
        made = scenario()
        opened = made.opened
        with pytest.raises(_InterruptedError), Interruption(raise_it, at):
            made.act()
        opened.append(b"next", b"g" * 5000, b"h" * 12_000)
        assert opened.ring.pending() == len(opened.accepted)
        verify(opened.dies(), opened.accepted)
        entries = opened.read()
        assert found(entries) == sorted(opened.accepted.items()), at
        assert missing(opened.ring) == [], at
        opened.settle(entries)
        opened.checkpoint()
        spares = opened.ring.spares
        assert spares.allocated == spares.free + len(opened.ring.live), f"a slot is nobody's at={at}"


@pytest.mark.parametrize("behind", [False, True], ids=["before the frame is left out", "behind that"])
def test_where_a_second_handler_raises_as_the_first_one_s_record_is_left_out_no_other_record_stands_for_it(
    monkeypatch: pytest.MonkeyPatch, *, behind: bool
) -> None:
    opened = Opened()
    opened.append(b"waits")
    store, size = ring._FRAMES[5]

    def raises_behind(call: Callable[..., Any]) -> Callable[..., Any]:
        def raise_it(*arguments: object) -> None:
            call(*arguments)
            raise _InterruptedError

        return raise_it

    with monkeypatch.context() as patch:
        patch.setattr(ring, "_FRAMES", {5: (raises_behind(store), size)})
        if behind:
            patch.setattr(ring, "_pack_frame", raises_behind(ring._pack_frame))
        else:
            patch.setattr(fmt, "skip_crc", raises_behind(fmt.skip_crc))
        with pytest.raises(_InterruptedError):
            opened.ring.append(b"other", b"other")
    entries = opened.read()
    assert [record for _, _, _, record in entries] == [b"waits", *([] if behind else [b"other"])]
    assert opened.ring.pending() == len(entries)
    opened.settle(entries[1:])
    opened.ring.go_on()
    opened.checkpoint()
    assert [record for _, record in found(opened.dies().read())] == [b"waits"]
    opened.settle(entries[:1])
    assert (opened.ring.pending(), opened.ring.failure) == (0, None)


class Poisons(Scenario):
    """A page can be neither read nor written: nothing more is accepted, and the next opening is told."""

    def act(self) -> None:
        self.opened.directory.poison(WalIOError(errno.EIO, "a page can be neither read nor written"))


def test_a_handler_that_raises_where_a_failure_is_told_hinders_no_checkpoint_and_the_next_opening_is_told() -> None:
    def raise_it() -> None:
        raise _InterruptedError

    for at in every_place(Poisons):
        made = Poisons()
        with pytest.raises(_InterruptedError), Interruption(raise_it, at):
            made.act()
        keeper = threading.Thread(target=_write_checkpoint, args=(made.opened,), daemon=True)
        keeper.start()
        keeper.join(5)
        assert not keeper.is_alive(), at
        suspect = made.opened.dies().ring.suspect.up_to
        assert (suspect > 0) == (made.opened.ring.failure is not None), at


def _write_checkpoint(opened: Opened) -> None:
    with suppress(WalIOError):
        opened.checkpoint()


def test_only_the_first_of_two_that_go_on_to_the_next_slot_wins() -> None:
    """The other's slot is kept ready, and no ordinal is used twice."""
    for at in every_place(RollsAllocated):
        made = RollsAllocated()
        opened = made.opened
        with Interruption(Rolls(opened), at):
            made.act()
        opened.append(*[b"f" * 3000] * 40)
        live = [slot.index for slot in opened.ring.live]
        assert len(set(live)) == len(live)
        with opened.dies() as following:
            ordinals = [slot.header.ordinal for slot in following.ring.live]
            assert len(set(ordinals)) == len(ordinals)
        assert opened.ring.bytes_allocated == opened.disk.ring.size()


# -- a real timer ----------------------------------------------------------------------------------------------------


@contextmanager
def every_100_us(handler: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.collect()


class Publisher:
    """Publishes numbered records of mixed size, from the main program and from the handler."""

    def __init__(self, opened: Opened):
        self.append = opened.ring.append
        self.accepted: dict[int, bytes] = {}
        self.from_handler = 0
        self.nested = 0  # handlers that run within one another: on a busy machine the next signal is there at once
        sizes = random.Random(5)
        self.tails = [bytes(sizes.choice([0, 20, 90, 200, 700])) for _ in range(997)]

    def publish(self, who: bytes, number: int) -> None:
        record = b"%b-%d-" % (who, number) + self.tails[number % 997]
        _, sequence = self.append(record, record)
        self.accepted[sequence] = record

    def handler(self) -> None:
        # No more than the main program has published: on a slow machine the loop would never keep up with the timer.
        if self.nested == 3 or 2 * self.from_handler > len(self.accepted):
            return
        self.nested += 1
        self.from_handler += 1
        self.publish(b"signal", self.from_handler)
        self.nested -= 1


@pytest.mark.timeout(120, method="thread")  # the other method needs the same timer
def test_200_000_records_and_a_signal_every_100_microseconds() -> None:
    opened = Opened(Disk(max_slots=10_000))
    publisher = Publisher(opened)
    with every_100_us(publisher.handler):
        for number in range(200_000):
            publisher.publish(b"main", number)
    assert publisher.from_handler > 100
    assert len(publisher.accepted) == 200_000 + publisher.from_handler == opened.ring.accepted
    following = opened.dies()
    got = {sequence: record for _, _, sequence, record in following.read(1000)}
    assert got == publisher.accepted
    assert missing(following.ring) == []


@pytest.mark.timeout(120, method="thread")
def test_the_loop_reads_settles_and_recycles_under_a_signal_every_100_microseconds() -> None:
    """Every record is read exactly once, in order, and the ring stays small: nothing is lost, nothing stays behind."""
    opened = Opened(Disk(max_slots=400))
    publisher = Publisher(opened)
    sequences: list[int] = []
    chance = random.Random(9)
    waiting: list[Entry] = []
    with every_100_us(publisher.handler):
        for number in range(60_000):
            publisher.publish(b"main", number)
            if number % 97 == 0:
                for _ in range(3):  # each is of one slot, with about 100 records
                    waiting += take(opened.reader, chance.randrange(1, 300))
            if number % 211 == 0 and waiting:
                batch = waiting[: chance.randrange(1, len(waiting) + 1)]
                del waiting[: len(batch)]
                sequences += settled(opened, batch, publisher.accepted)
            if number % 1009 == 0:
                opened.ring.recycle(opened.ring.watermark())
    sequences += settled(opened, waiting + opened.read(), publisher.accepted)
    assert publisher.from_handler > 50
    assert sequences == list(range(1, opened.ring.sequence + 1))
    assert len(publisher.accepted) == len(sequences)
    opened.read()
    opened.checkpoint()
    assert opened.ring.bytes_used <= 2 * SLOT
    verify(opened.dies(), {})


def settled(opened: Opened, entries: list[Entry], accepted: dict[int, bytes]) -> list[int]:
    """Settle by slots, as a batch does; the sequences."""
    by_slot: dict[Slot, list[int]] = {}
    for slot, place, sequence, record in entries:
        assert accepted[sequence] == record
        by_slot.setdefault(slot, []).append(place)
    for slot, group in by_slot.items():
        opened.ring.settle(slot, group)
    return [sequence for _, _, sequence, _ in entries]

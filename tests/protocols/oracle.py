"""What must, may and must not be found after a crash: a ledger outside of the library, and the judge. Pure.

Positions are pairs (epoch, sequence); a record is known by its name, whose first letter is its lane (``-``: none).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from aiorecover.wal import format as fmt

Position = tuple[int, int]
Word = tuple[str, Position]
"""ring, position: a settle word"""


class Sent(NamedTuple):
    """A batch as it is, or was, in flight: producer id, producer epoch and base sequence, and its records."""

    identity: tuple[int, int, int]
    positions: tuple[Position, ...]


ORDERED = "abc"  # lanes; records of other names have no key and no partition


class ViolationError(AssertionError):
    """The library broke a promise."""


def demand(holds: object, promise: str, *details: object) -> None:
    """Raise when a promise does not hold."""
    if not holds:
        raise ViolationError(" ".join([promise, *map(repr, details)]))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known at one moment, frozen so that moments can be compared."""

    accepted: tuple[tuple[Position, str], ...] = ()
    begun: tuple[tuple[Position, str], ...] = ()  # being stored: may be found, need not
    durable: frozenset[Position] = frozenset()  # stored before a completed flush began
    settled: frozenset[Position] = frozenset()
    words: frozenset[Word] = frozenset()  # settle words, stored
    words_durable: frozenset[Word] = frozenset()
    copied: frozenset[Position] = frozenset()  # to the retry ring, ever
    lost: frozenset[Position] = frozenset()  # a power cut took them, as it may
    dead: frozenset[Position] = frozenset()  # settled, because its letter is durable
    log: tuple[Position, ...] = ()  # what Kafka has
    ordinals: tuple[int, int] = (0, 0)  # of the newest slot begun in main and retry ring
    ordinals_durable: tuple[int, int] = (0, 0)
    opened: bool = False  # the directory was, once: both copies of its checkpoint were durable
    completed: tuple[int, int] = (0, 0)  # watermark and P of the last checkpoint whose write returned
    powerless: bool = False  # the power has gone before: settle words may be lost, and repeats are right
    failed: bool = False  # a flush has: settle words are suspect from then on, and repeats are right
    untold: bool = False  # and no word of it was left yet
    entered: tuple[Sent, ...] = ()  # in the journal, ever; the last one may be on its way there
    in_flight: frozenset[Sent] = frozenset()  # of these, what is entered, and not acknowledged and settled
    taken: frozenset[Sent] = frozenset()  # of these, what Kafka has, and answers as a repeat
    forgotten: frozenset[Sent] = frozenset()  # of these, what was cleared
    loose: frozenset[Position] = frozenset()  # of what was, or is being: goes in other batches, and may come twice
    clean: bool = False  # the last checkpoint says that nothing is stored any more: the power may go, nothing is lost

    @property
    def names(self) -> dict[Position, str]:
        """All that was ever accepted."""
        return dict(self.accepted + self.begun)

    def must(self, *, power: bool) -> set[Position]:
        """What has to be found."""
        there = self.durable if power else {position for position, _ in self.accepted}
        return set(there) - self.settled - self.lost


@dataclass(frozen=True, slots=True)
class Observation:
    """What an opening made of an image, read to its end as a drain would: per lane, retry before main."""

    epoch: int
    given: tuple[tuple[str, Position, str], ...]  # ring, position, name; in order
    letters: tuple[tuple[Position, str], ...]  # position, name; of the dead ring
    missing: tuple[Position, ...]  # as reported, of the main ring
    retry_missing: int
    damaged: int  # slots
    pending: int
    checkpoint: bool  # one copy of it is whole
    watermark: int
    flushed: int
    moved: int
    next_ordinals: tuple[int, int]
    resumed: tuple[Sent, ...] = ()  # taken up, and passed by readers

    @property
    def read(self) -> list[Position]:
        """Of what was given, in order."""
        return [position for _, position, _ in self.given]

    @property
    def positions(self) -> list[Position]:
        """Of all that is to be delivered: first what is taken up."""
        return [position for sent in self.resumed for position in sent.positions] + self.read


def judge(facts: Facts, seen: Observation, *, power: bool) -> None:
    """Compare what was found with what had to be.

    Raises:
        ViolationError: a promise was broken.

    """
    names, given = facts.names, seen.positions
    for _, position, name in seen.given:
        demand(names.get(position) == name, "I2: nothing but what was accepted is read", position, name)
    for position, name in seen.letters:
        demand(names.get(position) == name, "I2: a letter is of what was accepted", position, name)
    unread = facts.dead - {position for position, _ in seen.letters}
    demand(not unread, "I3: what is settled as a letter is one", sorted(unread))
    demand(len(set(given)) == len(given), "each record counts in exactly one place", seen.given)
    demand(not facts.lost & set(given), "what a power cut took stays gone", facts.lost & set(given))
    gone = facts.must(power=power) - set(given)
    demand(not gone, "what was accepted, and durable where power was cut, is found", sorted(gone))
    careful = (power or facts.powerless) and not facts.clean
    begun = {position for position, _ in facts.begun}
    if not careful:
        extra = set(seen.read) - facts.must(power=False) - begun
        demand(facts.failed or not extra, "what is settled stays settled", sorted(extra))
        demand(not seen.missing, "neither a dying process nor a clean end tears a hole", seen.missing)
        demand(not seen.retry_missing, "nor does it in the retry ring", seen.retry_missing)
    demand(not seen.damaged, "I10: no crash damages a slot", seen.damaged)
    demand(seen.pending == len(given), "the counts add up", seen.pending, len(given))
    _judge_gaps(facts, seen, power=power)
    taken = facts.lost | ({position for position, _ in facts.accepted} - facts.durable - set(given) if power else set())
    sent_anew = [position for sent in seen.resumed if sent not in facts.taken for position in sent.positions]
    _judge_order(names, [*facts.log, *sent_anew, *seen.read], taken)
    _judge_in_flight(facts, seen, sure=not power and not careful and not facts.failed)
    _judge_checkpoint(facts, seen)
    judge_identity(facts, seen, power=power)
    if power:
        _judge_repeats(facts, given)


def _judge_in_flight(facts: Facts, seen: Observation, *, sure: bool) -> None:
    """``sure``: in the boot, and the file, in which it was entered, with nothing in doubt."""
    resumed = set(seen.resumed)
    demand(resumed <= set(facts.entered), "I6b: exactly what was entered is sent again", seen.resumed)
    demand(not resumed & facts.forgotten, "what was cleared is not sent again", seen.resumed)
    demand(sure or not resumed, "what was entered in another boot is not trusted", seen.resumed)
    if sure:
        demand(facts.in_flight <= resumed, "what was in flight is sent again as it was", facts.in_flight, resumed)
        there = {position for sent in facts.taken for position in sent.positions} - facts.loose
        demand(not there & set(seen.read), "nothing that Kafka has comes again", sorted(there & set(seen.read)))


def _judge_gaps(facts: Facts, seen: Observation, *, power: bool) -> None:
    """Never a silent gap, and never a false report."""
    given, reported = set(seen.positions), set(seen.missing)
    demand(len(reported) == len(seen.missing), "what is missing is reported once", seen.missing)
    demand(not reported & given, "what was found is not reported missing", reported & given)
    known = {position for position, _ in facts.accepted + facts.begun}
    demand(reported <= known, "nothing is reported missing that never was", sorted(reported - known))
    if power:
        false = reported & facts.durable - facts.lost
        demand(not false, "nothing durable is reported missing", sorted(false))
    oldest = min(given, default=(0, 0))
    for position, _ in facts.accepted:
        if not seen.watermark and position < oldest:  # nobody knows what was recycled: stated in the package docstring
            continue
        behind = any(epoch == position[0] and sequence > position[1] for epoch, sequence in given)
        open_still = position not in given | facts.settled | facts.lost and behind
        demand(not open_still or position in reported, "no gap is silent", position)


def _judge_order(
    names: dict[Position, str], log: Sequence[Position], taken: set[Position] | frozenset[Position]
) -> None:
    """First appearances in order, and the last appearance of the newest value last.

    What a power cut has taken out of the ring after it was delivered cannot be repeated behind what was before it: that
    is not for the log to know, but for whoever looks into Kafka.
    """
    for lane in ORDERED:
        mine = [position for position in log if names.get(position, "-")[0] == lane]
        first = list(dict.fromkeys(mine))
        demand(first == sorted(first), "I6: first appearances are in order", mine)
        last = [position for position in dict.fromkeys(reversed(mine)) if position not in taken][::-1]
        demand(last == sorted(last), "I6: repeats are whole suffixes", mine)


def _judge_checkpoint(facts: Facts, seen: Observation) -> None:
    demand(seen.checkpoint or not facts.opened, "I4: one good copy of the checkpoint is always there")
    known = seen.watermark >= facts.completed[0] and seen.moved >= facts.completed[1]
    demand(known, "I4: a checkpoint that was written is there", seen.watermark, seen.moved, facts.completed)
    for position, _ in facts.accepted:
        at = fmt.position(*position)
        if position in facts.lost:
            continue
        if seen.moved < at <= seen.watermark:
            demand(
                ("ring", position) in facts.words_durable, "I4: a watermark covers what is durably settled", position
            )
        if at <= seen.flushed:
            demand(position in facts.durable, "I4: what is called flushed is durable", position)


def judge_identity(facts: Facts, seen: Observation, *, power: bool) -> None:
    """Nothing that was ever used is used again."""
    newest = max((epoch for (epoch, _), _ in facts.accepted + facts.begun), default=0)
    demand(seen.epoch > newest, "I5: no position is used twice", seen.epoch)
    used = facts.ordinals_durable if power else facts.ordinals
    for following, ordinal in zip(seen.next_ordinals, used, strict=True):
        demand(following > ordinal, "no slot ordinal is used twice", following, ordinal)


def _judge_repeats(facts: Facts, given: Sequence[Position]) -> None:
    """What is durably settled comes again only behind something of its lane that is not."""
    names, open_lanes = facts.names, set()
    for position in given:
        sure = ("ring", position) in facts.words_durable and position not in facts.copied
        lane = names[position][0]
        if sure and not (facts.powerless or facts.failed):
            demand(lane in open_lanes, "what is durably settled is not repeated alone", position)
        elif lane in ORDERED:
            open_lanes.add(lane)


def after(facts: Facts, seen: Observation, *, power: bool) -> Facts:
    """What is known once the next life has read everything."""
    given = set(seen.positions)
    came = tuple(item for item in facts.begun if item[0] in given)
    facts = replace(facts, accepted=facts.accepted + came, begun=())
    if not power:
        return facts
    known = {position for position, _ in facts.accepted}
    settled = facts.settled & known - given
    lost = facts.lost | (known - settled - given)
    words = frozenset((ring, position) for ring in ("ring", "retry") for position in settled)
    return replace(
        facts,
        durable=facts.durable | given,
        settled=settled,
        words=words,
        words_durable=words,
        lost=lost,
        in_flight=frozenset(),
        ordinals=facts.ordinals_durable,
        powerless=facts.powerless or not facts.clean,
    )


def flushed(facts: Facts, then: Facts, ring: str) -> Facts:
    """A flush of ``ring`` has completed that began when ``then`` was known."""
    words = frozenset(word for word in then.words & facts.words if word[0] == ring)
    number = ("ring", "retry").index(ring)
    ordinals = list(facts.ordinals_durable)
    ordinals[number] = max(ordinals[number], then.ordinals[number])
    facts = replace(facts, words_durable=facts.words_durable | words, ordinals_durable=(ordinals[0], ordinals[1]))
    if ring != "ring":
        return facts
    there = {position for position, _ in then.accepted} - facts.lost
    return replace(facts, durable=facts.durable | there)

"""The position that Kafka has committed for a directory, and what it covers. Pure.

It is an offset of a consumer group without members, committed in the transaction that brings the records up to it. In
its metadata stands who committed it: an opening of the directory, which is one process. And what became of the openings
before it: for each the last of its records that is in Kafka.

By that a directory tells what of its own is there, though it is not alone: where it was restored from a copy, another
process has gone on with the original meanwhile; or it is the original, and the copy has gone on. Both have the openings
up to the one in which the copy was made. What follows in either is in no other, however their positions compare. So
only what is said of openings that both know counts: how far in their records whoever went on has come.
"""

from typing import NamedTuple

import msgspec

from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Line, Transactional, names_opening

LINE_MOST = 32  # openings that stand in the metadata: it has room for some 4,000 characters
OTHERS_MOST = 16  # of directories that are copies of this one


class Committed(NamedTuple):
    """A position, the ``owner`` who committed it, and how far the openings ``before`` that one have come.

    ``number`` of the transactional id that it was done with.
    """

    position: int
    owner: str
    before: Line = ()
    number: int = 0

    @property
    def metadata(self) -> str:
        """What stands beside the position."""
        return " ".join([self.owner, str(self.number), *(f"{owner}:{last}" for owner, last in self.before)])

    @property
    def reached(self) -> dict[str, int]:
        """How far each opening has come; whoever else has committed, people with a tool of Kafka's, is none."""
        return {name: last for name, last in (*self.before, (self.owner, self.position)) if names_opening(name)}


def parsed(position: int, metadata: str) -> Committed:
    """As it was read; what is not ours to read counts for nothing."""
    owner, *rest = metadata.split(" ")
    pairs = (text.rpartition(":") for text in rest[1:])
    before = tuple((name, int(last)) for name, _, last in pairs if _is_number(last))
    return Committed(position, owner, before, int(rest[0]) if rest and _is_number(rest[0]) else 0)


def owner_of(producer_id: int, epoch: int) -> str:
    """The name of an opening: its producer id, with the nonce, and its epoch."""
    return f"{fmt.producer_text(producer_id)}/{epoch}"


def is_ours(found: Committed, known: Transactional) -> bool:
    """Whether it was committed from this directory, and not from a copy of it."""
    return found.owner in dict(known.line)


def covered_by(found: Committed | None, known: Transactional) -> int:
    """The highest position that is in Kafka; 0: nothing tells.

    What is said of each opening is true by itself: all that the directory held up to there then.
    """
    reached = found.reached if found is not None else {}
    return max((reached[owner] for owner, _ in known.line if owner in reached), default=0)


def opened_by(known: Transactional, owner: str) -> Transactional:
    """What to remember from the opening ``owner`` on."""
    line = (*(pair for pair in known.line if pair[0] != owner), (owner, 0))
    return msgspec.structs.replace(known, line=_shortened(line, known))


def read_by(known: Transactional, found: Committed | None, epoch: int) -> Transactional:
    """What to remember before anything is committed: that the present opening has read the position in ``epoch``."""
    reached = found.reached if found is not None else {}
    line = tuple((owner, max(last, reached.get(owner, 0))) for owner, last in known.line)
    others = {**dict(known.others), **{owner: last for owner, last in reached.items() if owner not in dict(line)}}
    by = known.committed_by if found is None else found.owner
    kept = tuple(others.items())[-OTHERS_MOST:]
    return msgspec.structs.replace(known, line=line, others=kept, read_in=epoch, committed_by=by)


def dispatched(known: Transactional, last: dict[int, int]) -> Transactional:
    """What to remember once records of earlier openings were sent; ``last``: by their epochs."""
    line = tuple((owner, max(reached, last.get(_epoch(owner), 0))) for owner, reached in known.line)
    return msgspec.structs.replace(known, line=line)


def to_commit(position: int, known: Transactional) -> Committed:
    """What the present opening commits: it is the newest of the line."""
    *before, (owner, _) = known.line
    capped = tuple((name, min(last, position)) for name, last in before)
    return Committed(position, owner, (*known.others, *capped), known.number)


def _shortened(line: Line, known: Transactional) -> Line:
    """Without the oldest, but for the two that may have committed last: many starts in one outage have not."""
    may_have = {owner for owner, _ in line if owner == known.committed_by or _epoch(owner) == known.read_in}
    parted = [owner for owner, _ in line if owner not in may_have][: max(0, len(line) - LINE_MOST)]
    return tuple(pair for pair in line if pair[0] not in parted)


def _is_number(text: str) -> bool:
    """Whether it can be a position, or the number of an id: a checkpoint has no room for more."""
    return text.isdecimal() and len(text) < 20 and int(text) < 1 << 63  # noqa: PLR2004 - 2^63 has 19 digits


def _epoch(owner: str) -> int:
    return int(owner.rpartition("/")[2])

"""The rules about batches in flight, and about what comes between two copies, each taken away in turn."""

from typing import Any

from aiorecover.delivery.journaling import Journal
from aiorecover.wal import lanes
from aiorecover.wal.directory import Directory
from aiorecover.wal.lanes import Lanes
from aiorecover.wal.moving import Copying
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from tests.protocols.faults import Fault, Patch, copies_not_settled_with_originals
from tests.protocols.world import World


def not_pointed_to_the_copies(patch: Patch) -> None:
    patch.setattr(Journal, "repoint", lambda *_: None)


def pointed_to_the_copies_behind_the_move(patch: Patch) -> None:
    """The checkpoint that makes the move is durable, and then the entries are stored."""
    repoint, write = World.repoint, Directory.write_checkpoint

    def later(self: World) -> None:
        def written(directory: Directory, checkpoint: Any) -> None:
            write(directory, checkpoint)
            repoint(self)

        patch.setattr(Directory, "write_checkpoint", written)

    patch.setattr(World, "repoint", later)


def not_cleared(patch: Patch) -> None:
    patch.setattr(Lanes, "clear", lambda *_: None)


def known_in_any_boot(patch: Patch) -> None:
    patch.setattr(lanes.Header, "same_place", lambda *_: True)


def sent_before_it_is_entered(patch: Patch) -> None:
    """And never entered: whoever comes next sends it once more, as anything else."""
    patch.setattr(Lanes, "store", lambda *_: None)


def copied_though_settled(patch: Patch) -> None:
    """A copy is made of what waited when it was first read, whatever came of it since."""
    patch.setattr(Reader, "forget", lambda _: None)
    step, waits = Copying.step, Slot.waits

    def blind(self: Copying, limit: int = 1) -> bool:
        patch.setattr(Slot, "waits", lambda *_: True)
        try:
            return step(self, limit)
        finally:
            patch.setattr(Slot, "waits", waits)

    patch.setattr(Copying, "step", blind)


def acknowledged_beside_its_copy(patch: Patch) -> None:
    """What is copied already is settled where it was, and waits where it will be."""
    copies_not_settled_with_originals(patch)


def read_beside_its_batch(patch: Patch) -> None:
    patch.setattr(Ring, "claim", lambda *_: None)


PLANTED: dict[Fault, str] = {
    not_pointed_to_the_copies: "in flight, moved",
    pointed_to_the_copies_behind_the_move: "in flight, moved",
    not_cleared: "in flight, forgotten",
    known_in_any_boot: "in flight, another boot",
    sent_before_it_is_entered: "in flight",
    copied_though_settled: "settled between copies",
    read_beside_its_batch: "in flight",
    acknowledged_beside_its_copy: "acknowledged between copies",
}

"""What a view shows of a directory that nobody has open, beside what the next opening finds there."""

import random
import secrets
from pathlib import Path
from unittest import mock

from aiorecover.wal import format as fmt
from aiorecover.wal.losses import Damage, named
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.reading import Reader
from aiorecover.wal.view import View
from aiorecover.wal.walk import FrameView
from tests.wal.ledger import demand
from tests.wal.rig import Disk, Machine, Opened, found, read

NAMES = (RING, RETRY, DEAD)


def check_views(disk: Disk, name: str) -> None:
    """Of each ring: the same records and the same damage. ``name``: of the directory, which an opening has to know."""
    looks = [_look(disk, ring) for ring in NAMES]
    with (
        mock.patch.object(secrets, "randbits", random.Random(2).getrandbits),  # the others stay what they would be
        Opened(disk.after_death(), name=name) as following,
    ):
        for ring, of_owner, (frames, missing) in zip(NAMES, following.directory.rings, looks, strict=True):
            came = found(read(Reader(of_owner, bytes)))
            seen = [fmt.parts(frame.number) for frame in frames]
            demand(seen == [place for place, _ in came], "a view shows what the next opening reads", ring, seen)
            for frame, (place, payload) in zip(frames, came, strict=True):
                demand(payload.endswith(frame.payload), "a view shows the record that is there", ring, place)
                demand(ring != RING or payload == frame.payload, "a view shows the whole record", place)
            demand(missing == of_owner.damage, "a view misses what the next opening misses", ring, missing)
            told = [named(ring, one) for one in missing]
            demand(told == [named(ring, one) for one in of_owner.damage], "and says of which records", ring, told)


def _look(disk: Disk, ring: str) -> tuple[list[FrameView], list[Damage]]:
    files = {name: getattr(disk, name) for name in ("checkpoint", *NAMES)}
    view = View(Path("/"), ring, files.get, Machine(disk.boots).boot_id())
    return list(view.frames()), view.missing

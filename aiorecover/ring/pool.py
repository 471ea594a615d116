"""The pool: the parts of the file that belong to no lane, and the disk space that some of them keep."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aiorecover.ring import format as layout
from aiorecover.ring.files import Files
from aiorecover.ring.format import PAGE, Geometry
from aiorecover.ring.segments import Region

REST_S = 3.0  # free segments keep their disk space so long: a busy ring reuses them within one flush
KEPT_MOST = 8 << 20  # bytes of free segments that a busy ring keeps beyond that: a pause is no reason to allocate anew
RESTED_MOST = 128  # free segments that give their disk space back each second: 0.1 to 3 ms each, beside the loop

Beside = Callable[[Callable[[], None], Callable[[], None]], None]  # runs the first in a thread, then the second here


class FreeSegment(NamedTuple):
    """A free segment that has disk space: ``held`` bytes, of which ``reserved`` from its start are there for sure."""

    place: int
    reserved: int
    held: int


class Pool:
    """The free segments of a ring, by their size.

    Attributes:
        regions: of the file, in the order of their places.
        kept: bytes of disk space that free segments hold.

    """

    def __init__(self, files: Files, fd: int, geometry: Geometry) -> None:
        self.files, self.fd, self.geometry = files, fd, geometry
        self.regions: list[Region] = []
        self.kept = 0
        self._free: dict[int, list[FreeSegment]] = {}
        self._holes: dict[int, deque[int]] = {}  # places of segments without disk space
        self._rested: dict[int, float] = {}  # since when a class has had free segments

    def region_of(self, place: int) -> Region:
        """Return the region around a place in the file."""
        return self.regions[place // self.geometry.region]

    def add_hole(self, place: int, size: int) -> None:
        """Add a free segment without disk space."""
        self._holes.setdefault(size, deque()).append(place)

    def put(self, place: int, size: int, reserved: int, held: int) -> None:
        """Add a free segment that keeps its disk space; see `FreeSegment`."""
        self._free.setdefault(size, []).append(FreeSegment(place, reserved, held))
        self.kept += held

    def keeps(self, size: int) -> bool:
        """Whether a free segment of this size keeps disk space."""
        return bool(self._free.get(size))

    def take_kept(self, size: int) -> FreeSegment | None:
        """Take out a segment that keeps disk space; None: there is none."""
        if not self.keeps(size):
            return None
        found = self._free[size].pop()
        self.kept -= found.held
        return found

    def take_hole(self, size: int) -> FreeSegment:
        """Take out a segment without disk space; the file grows where there is none.

        Raises:
            WalFullError: the volume has no room for that.

        """
        if not self._holes.get(size):
            self._new_region(size)
        return FreeSegment(self._holes[size].popleft(), 0, 0)

    def _new_region(self, size: int) -> None:
        """Give an unused region this class, or let the file grow by one."""
        region = next((one for one in self.regions if not one.used and one.size != size), None)
        if region is None:
            region = Region(self.files, self.fd, len(self.regions) * self.geometry.region, size, self.geometry.region)
            self.files.set_size(self.fd, region.base + self.geometry.region)
            self.files.allocate(self.fd, region.base, PAGE)
            self.regions.append(region)
        else:
            self._forget_free(region)
        self.files.write(self.fd, region.base, layout.pack_region(size, region.base))
        region.size = size
        self._holes.setdefault(size, deque()).extend(region.base + at for at in self.geometry.places(size))

    def _forget_free(self, region: Region) -> None:
        """Take a region's free segments out of the pool, and give their disk space back: it gets another class."""
        inside = range(region.base, region.base + self.geometry.region)
        free = self._free.get(region.size, [])
        self.kept -= sum(one.held for one in free if one.place in inside)
        self._free[region.size] = [one for one in free if one.place not in inside]
        self._holes[region.size] = deque(place for place in self._holes.get(region.size, ()) if place not in inside)
        self.files.give_back(self.fd, region.base + PAGE, self.geometry.region - PAGE)

    def give_back(self, need: int) -> None:
        """Give ``need`` bytes of disk space back, as far as free segments keep so many."""
        for size, free in self._free.items():
            while free and need > 0:
                self.files.give_back(self.fd, free[-1].place, size)
                one = free.pop()
                self.kept -= one.held
                need -= one.held
                self._holes.setdefault(size, deque()).appendleft(one.place)

    def rest(self, now: float, beside: Beside, *, busy: bool) -> None:
        """Once a second: give back the disk space of what has been free for a while; ``busy``: keep some of it."""
        for size, free in self._free.items():
            if not free:
                self._rested.pop(size, None)
            elif now - self._rested.setdefault(size, now) >= REST_S:
                self._rest(size, free, beside, busy=busy)

    def _rest(self, size: int, free: list[FreeSegment], beside: Beside, *, busy: bool) -> None:
        """Give the disk space of some free segments back, beside the loop.

        They are in no pool meanwhile, and their regions count as used, so that none is given another class.
        """
        some: list[FreeSegment] = []
        while free and len(some) < RESTED_MOST and (not busy or self.kept > KEPT_MOST):
            some.append(free.pop(0))
            self.kept -= some[-1].held
        regions = [self.region_of(one.place) for one in some]

        def dig() -> None:
            for one in some:
                self.files.give_back(self.fd, one.place, size)

        def dug() -> None:
            for region in regions:
                region.used -= 1
            self._holes.setdefault(size, deque()).extendleft(one.place for one in some)

        if some:
            for region in regions:
                region.used += 1
            beside(dig, dug)

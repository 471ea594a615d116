"""The half of `model.Machine` with pages that leave memory: the kernel calls them clean, and the disk never had them.

So it is behind a failed flush (`aiorecover.testing.memory_file`). A life that met the failure may miss from then on
whatever no flush before had covered, and no more; so may the next one, which is told of it. Its opening stores again
all that it found: who comes later misses nothing. What an earlier life has settled, and no flush since, may come again
in a life that met the failure before its reader came there (`Ledger.evicted`): a limitation.
"""

from tests.wal.machine import NEVER, SECTORS, SEEDS, Core, step

FILES = ("ring", "ring", "retry", "dead", "lanes", "checkpoint")


class EvictSteps(Core):
    """Flushes fail, and pages go."""

    @step(lambda m: not m.life.poisoned, file=FILES, traffic=[False, True])
    def fail_checkpoint(self, file: str, traffic: bool) -> None:
        """The flush of one file fails in the middle of it."""
        stored = self._files()[file].stored
        fails = "" if file == "lanes" and not self.life.directory.lanes._stored else file  # then it is not flushed
        self.write_checkpoint(traffic=traffic, end=NEVER, power=None, fails=fails, sector=512)
        stored.fail_syncs(0)

    @step(lambda m: m.failed_flush, seed=SEEDS)
    def evict(self, seed: int) -> None:
        """Some of the pages go while the process lives; what it may still read of the dead ring is left alone."""
        self._evict(seed, letters=not self.life.poisoned)

    @step(lambda m: m.failed_flush, seed=SEEDS, sector=SECTORS)
    def evict_and_die(self, seed: int, sector: int) -> None:
        """They go when the process has died."""
        self._evict(seed, letters=True)
        self._end(None, sector, self._moved())

    def _evict(self, seed: int, *, letters: bool) -> None:
        life, disk = self.life, self.life.disk
        self.entries.look(disk.lanes.live())
        files = (disk.ring, disk.retry, disk.lanes, disk.checkpoint, *([disk.dead] if letters else ()))
        gone = [file.stored.evict(f"{seed} {number}") for number, file in enumerate(files)]
        self.entries.evicted(disk.lanes.live())
        if any(gone) and life.poisoned:
            life.evicted = self.powerless = True
            self.ledger.evicted(life.unread())

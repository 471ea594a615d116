"""`python -m tests.prove kernel --seed S --count N`: a real kernel dies in QEMU, again and again, with fsync="always".

A guest publishes on an ext4 of its own and prints each acknowledgement on its serial console. At a moment that the
seed chooses its kernel is reset (``sysrq b``) or QEMU is killed; in both cases what was in the guest's memory, page
cache and all, is gone. What the disk was told is kept, flushed or not, because the host lives on: what a disk may lose
of its own cache is the matter of `tests.prove.power`. The next boot recovers the same disk and tells what is
there: every record whose acknowledgement had reached the console must be. Every round of so many crashes begins with an
empty disk; round r has the seed S + r - 1.

First the guest publishes with fsync="never": that must lose records, or nothing is proved here.

Exit status: 0 proved, 1 a promise was broken (the disk is kept and named), 2 cannot run here.
"""

import argparse
import logging
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.power.guest_image import missing_program
from tests.power.ledger import Ledger
from tests.power.lives import Geometry, make_disk
from tests.power.qemu import GuestFailedError, Machine
from tests.power.workload import Task

__all__ = ["main"]

ROUND: Final = 10  # crashes of one disk: what is found is never delivered, and each boot reads all of it
_DISK_BYTES: Final = 128 << 20
_RING_BYTES: Final = 96 << 20
_LONGEST_LIFE_S: Final = 3.0
_MOST_RECORDS: Final = 1500
_CONTROLS: Final = 3  # lives with fsync="never" of which one at least must lose records
_ALL_RECORDS: Final = 1 << 30
_LIFE_ENDS_S: Final = 60.0  # a workload that is never killed ends all the same


@dataclass
class Totals:
    """What has been seen so far."""

    crashes: int = 0
    resets: int = 0
    acknowledged: int = 0
    found: int = 0
    unacknowledged: int = 0
    """Records that were found although nobody was told: allowed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove kernel", description="crash a kernel in QEMU")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=100, help="how many crashes (default 100)")
    options = parser.parse_args(arguments)
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # mkfs.ext4 needs no root, but is not on everybody's path
    missing = missing_program()
    if missing is not None:
        print(f"a guest cannot be started: {missing}", file=sys.stderr)
        return 2
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    logging.getLogger("aiorecover").setLevel(logging.CRITICAL)
    began = time.monotonic()
    try:
        if not _control(seed):
            print('NOT OK: fsync="never" lost nothing: this proof cannot fail', flush=True)
            return 1
        totals = Totals()
        for number in range(-(-options.count // ROUND)):
            count = min(ROUND, options.count - number * ROUND)
            print(f"round {number + 1}: seed={seed + number} crashes={count}", flush=True)
            if not _round(seed + number, count, totals):
                print(f"repeat: python -m tests.prove kernel --seed {seed + number} --count {count}", flush=True)
                return 1
            rest = options.count - totals.crashes
            if rest:
                print(f"  {totals} to go on: --seed {seed + number + 1} --count {rest}", flush=True)
    except GuestFailedError as error:
        print(f"NOT OK: {error}", flush=True)
        return 1
    seconds = time.monotonic() - began
    figures = " ".join(f"{name}={value}" for name, value in asdict(totals).items())
    print(f"proved: seed={seed} {figures} lost=0 seconds={seconds:.0f}", flush=True)
    return 0


def _control(seed: int) -> bool:
    """Whether records that nobody flushed are missing after a crash, as they must be."""
    for life in range(1, _CONTROLS + 1):
        with tempfile.TemporaryDirectory(prefix="aiorecover-prove-kernel-") as work:
            disk = Path(work) / "disk"
            make_disk(disk, Geometry(), _DISK_BYTES)
            machine = Machine(Path(work), disk)
            ledger = Ledger(life=life)
            task = _task(life, random.Random(f"control {seed} {life}"), fsync="never")
            boot = machine.boot({"task": asdict(task), "publish": True, "crash_after_s": 2.0}, None)
            ledger.hear(boot.said, task.publishers)
            wrong = ledger.judge(machine.boot({"task": asdict(task), "publish": False}, None).found, 0)
        if any(complaint.startswith("lost") for complaint in wrong):
            print(f'fsync="never", as it must: {wrong[0]}', flush=True)
            return True
    return False


def _round(seed: int, crashes: int, totals: Totals) -> bool:
    """One disk and its crashes; False when something is wrong (the disk is kept)."""
    work = Path(tempfile.mkdtemp(prefix=f"aiorecover-prove-kernel-{seed}-"))
    print(f"  in {work}", flush=True)
    rng = random.Random(f"kernel {seed}")
    disk = work / "disk"
    make_disk(disk, Geometry(rng.choice([1024, 4096])), _DISK_BYTES)
    machine = Machine(work, disk)
    ledger = Ledger(life=0)
    for life in range(1, crashes + 2):
        before = work / "disk.before"  # as the crash left it: the next boot changes it
        subprocess.run(["cp", "--sparse=always", disk, before], check=True)
        task = _task(life, rng, fsync="always")
        reset = rng.random() < 0.5
        orders: dict[str, object] = {"task": asdict(task), "publish": life <= crashes}
        orders["crash_after_s"] = rng.uniform(0.0, _LONGEST_LIFE_S) if reset else None
        boot = machine.boot(orders, None if reset or life > crashes else rng.randrange(1, _MOST_RECORDS))
        wrong = ledger.complaints + ledger.judge(boot.found, 0)
        if wrong:
            print("\n  ".join([f"NOT OK: life={life}", *wrong, f"kept: {before}"]), flush=True)
            return False
        required = len(ledger.required(0))
        ledger = ledger.after(boot.found, 0)
        ledger.epochs.append((0, boot.found.epoch))
        ledger.hear(boot.said, task.publishers)
        totals.found += len(boot.found.records)
        totals.unacknowledged += len(boot.found.records) - required
        if life <= crashes:
            totals.crashes += 1
            totals.resets += reset
            totals.acknowledged += ledger.acknowledged(0)
            print(f"  crash {life}: {'reset' if reset else 'killed'} {ledger.acknowledged(0)} acknowledged", flush=True)
    shutil.rmtree(work)
    return True


def _task(life: int, rng: random.Random, *, fsync: str) -> Task:
    options: dict[str, Any] = {
        "fsync": fsync,
        "slot_bytes": 1 << rng.choice([14, 14, 16, 18]),
        "checkpoint_interval_ms": rng.choice([10, 100, 1000]),
        "wal_max_bytes": _RING_BYTES,
        "wal_min_free_bytes": 0,
    }
    publishers = rng.choice([1, 5, 20, 50])
    seed = rng.randrange(1 << 30)
    return Task("", life, seed, _ALL_RECORDS, _LIFE_ENDS_S, publishers, "", options=options)

"""One life of a machine: ext4 on a logged disk, and a process that publishes there until its end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tests.power.boot import another_boot
from tests.power.device import COUNTER_BYTES, DISK
from tests.power.mounts import loop_device, mounted
from tests.power.words import Said, hear
from tests.power.workload import Task
from tests.power.writelog import WriteLog, unpack

__all__ = ["IMAGE_BYTES", "WAL_DIR", "Geometry", "LifeFailedError", "live", "logged_file", "make_disk"]

IMAGE_BYTES: Final = 16 << 20  # a ring of 4 MiB, a journal of 4 MiB, the smallest with blocks of 4 KiB, and room
WAL_DIR: Final = "wal"
_REPOSITORY = Path(__file__).parents[2]
_READY_WITHIN_S = 60.0  # a new interpreter on a machine that is busy with other proofs
_END_WITHIN_S = 60.0


class LifeFailedError(AssertionError):
    """A process did not do what it was told; its words are attached."""


@dataclass(frozen=True)
class Geometry:
    """How ext4 is made and mounted."""

    block_bytes: int = 4096
    mount_options: str = ""


def make_disk(image: Path, geometry: Geometry, size: int = IMAGE_BYTES) -> None:
    """An empty ext4, complete: nothing is left to be written later in the background."""
    image.write_bytes(b"")
    os.truncate(image, size)
    options = ["-b", str(geometry.block_bytes), "-J", "size=4", "-m", "0", "-F", "-q"]
    lazy = ["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
    subprocess.run(["mkfs.ext4", *options, *lazy, str(image)], check=True, capture_output=True)


def live(work: Path, image: Path, geometry: Geometry, task: Task) -> tuple[WriteLog, list[Said]]:
    """Carry out ``task`` on the disk that ``image`` holds; all that the disk was told, and all that was said.

    ``wal_dir``, ``said``, ``counter`` and ``boot_id`` of the task are filled in here. ``image`` is not changed.
    """
    log, counter, said, boot_id = (work / name for name in ("log", "counter", "said", "boot_id"))
    for path in (log, said):
        path.unlink(missing_ok=True)
    counter.write_bytes(bytes(COUNTER_BYTES))
    mountpoint = work / "life"
    mountpoint.mkdir(exist_ok=True)
    wal_dir = str(mountpoint / WAL_DIR)
    another_boot(boot_id)
    task = replace(task, wal_dir=wal_dir, said=str(said), counter=str(counter), boot_id=str(boot_id))
    with (
        logged_file(work, image, log, counter) as file,
        loop_device(file) as device,
        mounted(device, mountpoint, geometry.mount_options),
    ):
        _work(task, work / "workload.log")
    return unpack(log.read_bytes()), hear(said.read_text(encoding="ascii").splitlines())


@contextmanager
def logged_file(work: Path, image: Path, log: Path, counter: Path) -> Iterator[Path]:
    """A file with the bytes of ``image``, which stay as they are; `tests.power.device` logs what is done to it."""
    directory = work / "device"
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.power.device", image, log, counter, directory]
    errors = work / "device.log"
    with errors.open("wb") as out:
        process = subprocess.Popen([*map(str, command)], cwd=_REPOSITORY, stdout=out, stderr=out)
    try:
        until = time.monotonic() + _READY_WITHIN_S
        while not (directory / DISK).exists():
            if process.poll() is not None or time.monotonic() > until:
                raise LifeFailedError(f"the logged disk does not come up: {errors.read_text()[-2000:]}")
            time.sleep(0.01)
        yield directory / DISK
    finally:
        subprocess.run(["fusermount3", "-u", "-q", str(directory)], check=False)
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _work(task: Task, log: Path) -> None:
    command = [sys.executable, "-m", "tests.power.workload", json.dumps(asdict(task))]
    limit = task.seconds + _END_WITHIN_S
    with log.open("wb") as errors:
        done = subprocess.run(command, cwd=_REPOSITORY, stderr=errors, timeout=limit, check=False)
    if done.returncode != (-9 if task.kill else 0):
        raise LifeFailedError(f"the workload failed status={done.returncode}: {log.read_text()[-4000:]}")

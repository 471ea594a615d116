"""Whether a disk can be logged here, and where its image is kept meanwhile."""

import tempfile
from pathlib import Path

from tests.power.lives import Geometry, make_disk
from tests.power.mounts import enter_namespace, loop_device, missing_facility, missing_installable, mounted

__all__ = ["folder", "why_impossible"]


def why_impossible() -> str | None:
    """What is missing, if anything; else this process has a mount namespace of its own from here on."""
    return missing_installable() or missing_facility() or _refused()


def _refused() -> str | None:
    """Enter a mount namespace of our own and mount an ext4 there: what root in a container may be refused."""
    try:
        enter_namespace()
        with folder("mount") as work:
            image, mountpoint = Path(work) / "image", Path(work) / "mounted"
            make_disk(image, Geometry())
            mountpoint.mkdir()
            with loop_device(image) as device, mounted(device, mountpoint):
                return None
    except OSError as error:
        return f"ext4 cannot be mounted, the container must allow it error={error}"


def folder(name: str) -> "tempfile.TemporaryDirectory[str]":
    """In memory where that is possible: ten thousand disks of 16 MiB are written."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
    return tempfile.TemporaryDirectory(prefix=f"aiorecover-prove-{name}-", dir=memory if memory.is_dir() else None)

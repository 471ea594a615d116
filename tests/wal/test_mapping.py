"""A part of a file is mapped without a descriptor of its own, as the kernel sees it."""

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover.wal import mapping
from aiorecover.wal.mapping import map_shared

PART = mmap.ALLOCATIONGRANULARITY
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own lists are read from /proc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(8 * PART))
    return tmp_path / "file"


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    found = os.open(path, os.O_RDWR)
    yield found
    os.close(found)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their number, with the one of the listing


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_what_is_stored_is_in_the_file_and_what_is_written_is_seen(descriptor: int, path: Path) -> None:
    mapped, again = map_shared(descriptor, 2 * PART, PART), map_shared(descriptor, PART, 2 * PART)
    mapped[PART : PART + 3] = b"abc"
    assert again[:3] == b"abc"
    os.pwrite(descriptor, b"xyz", PART)
    assert mapped[:3] == b"xyz"
    memoryview(mapped).cast("I")[1] = 0x41424344
    mapped.close()
    again.close()
    found = path.read_bytes()
    assert found[PART : PART + 8] == b"xyz\0DCBA"
    assert found[2 * PART : 2 * PART + 3] == b"abc"
    assert len(found) == 8 * PART


@linux
def test_a_mapping_takes_no_descriptor_and_goes_when_it_is_closed(descriptor: int, path: Path) -> None:
    before = descriptors()
    mapped = [map_shared(descriptor, PART, number * PART) for number in range(8)]
    assert descriptors() == before
    assert is_mapped(path)
    for one in mapped:
        one.close()
    assert not is_mapped(path)
    del mapped
    assert descriptors() == before


@linux
def test_it_outlives_the_descriptor(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    mapped = map_shared(descriptor, PART, 0)
    os.close(descriptor)
    mapped[:2] = b"ok"
    mapped.close()
    assert path.read_bytes()[:2] == b"ok"


@linux
@pytest.mark.skipif(not mapping.TRACKS, reason="Python maps it by itself")
@pytest.mark.parametrize("wrong", ["closed", "read-only", "between pages", "nothing", "less than nothing"])
def test_what_the_kernel_refuses_is_an_error_and_leaves_nothing_mapped(path: Path, wrong: str) -> None:
    descriptor = os.open(path, os.O_RDONLY if wrong == "read-only" else os.O_RDWR)
    if wrong == "closed":
        os.close(descriptor)
    before = Path("/proc/self/maps").read_text().count("\n")
    offset = 512 if wrong == "between pages" else 0
    length = {"nothing": 0, "less than nothing": -PART}.get(wrong, 64 * PART)
    expected = {"closed": errno.EBADF, "read-only": errno.EACCES}.get(wrong, errno.EINVAL)
    for _ in range(20):
        with pytest.raises(OSError, match=os.strerror(expected)) as refused:
            map_shared(descriptor, length, offset)
        assert refused.value.errno == expected
    assert Path("/proc/self/maps").read_text().count("\n") < before + 20
    if wrong != "closed":
        os.close(descriptor)

"""A part of a file is mapped without a descriptor of its own, as the kernel sees it."""

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover.wal import mapping
from aiorecover.wal.mapping import map_shared

PART = mmap.ALLOCATIONGRANULARITY
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own lists are read from /proc")

needed = pytest.mark.skipif(not mapping.TRACKS, reason="Python maps it by itself")


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
@needed
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


UNDER_A_LIMIT = """
    import os, resource, sys
    from aiorecover.wal.mapping import map_shared

    length = 256 << 20
    descriptor = os.open(sys.argv[1], os.O_RDWR)
    os.truncate(descriptor, length)
    resource.setrlimit(resource.RLIMIT_DATA, (length // 2, length // 2))
    before = os.listdir("/proc/self/fd")
    mapped = map_shared(descriptor, length, 0)
    assert os.listdir("/proc/self/fd") == before
    mapped[:2] = b"ok"
"""


@linux
def test_a_limit_of_private_memory_does_not_count_it(path: Path) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(UNDER_A_LIMIT), str(path)], check=True, timeout=60)
    with path.open("rb") as file:
        assert file.read(2) == b"ok"


@linux
@needed
def test_where_no_range_can_be_reserved_it_takes_a_descriptor(
    descriptor: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory counts for the kernel, though it is never used."""
    map_by_python = mmap.mmap

    def within_limits(number: int, length: int, **more: int) -> mmap.mmap:
        if number < 0:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return map_by_python(number, length, **more)

    monkeypatch.setattr(mmap, "mmap", within_limits)
    mapped = map_shared(descriptor, PART, PART)
    mapped[:2] = b"ok"
    mapped.close()
    assert path.read_bytes()[PART : PART + 2] == b"ok"


AT_THE_LIMIT_OF_MAPPINGS = """
    import errno, mmap, os, sys
    from aiorecover.wal.mapping import map_shared

    descriptor, others = os.open(sys.argv[1], os.O_RDWR), []
    try:
        while True:
            others.append(mmap.mmap(-1, mmap.PAGESIZE))
    except OSError as error:
        assert error.errno == errno.ENOMEM
    for _ in range(5):
        try:
            map_shared(descriptor, mmap.PAGESIZE, 0)
        except OSError as error:
            assert error.errno == errno.ENOMEM
    for _ in range(3):
        others.pop().close()
        mapped = map_shared(descriptor, mmap.PAGESIZE, 0)
        mapped[:2] = b"ok"
        mapped.close()
"""


@linux
@needed
def test_at_the_limit_of_mappings_none_takes_the_place_of_one_that_was_unmapped(path: Path) -> None:
    """An outage of a large ring may come there (vm.max_map_count): with each slot that comes free there is room."""
    if int(Path("/proc/sys/vm/max_map_count").read_text()) > 1 << 17:
        pytest.skip("it takes too long to come to this machine's limit")
    code = textwrap.dedent(AT_THE_LIMIT_OF_MAPPINGS)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)


@linux
@needed
def test_what_another_thread_has_mapped_where_a_mapping_failed_stays(
    descriptor: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take the reserved range away and fail then; whoever maps next may be given it."""
    others = tmp_path / "others"
    others.write_bytes(bytes(PART))
    map_over = mapping._mmap

    def fails(address: int, length: int, protection: int, flags: int, _: int, offset: int) -> int | None:
        with others.open("r+b") as file:
            map_over(address, length, protection, flags, file.fileno(), offset)
        ctypes.set_errno(errno.ENOMEM)
        return mapping.FAILED

    monkeypatch.setattr(mapping, "_mmap", fails)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        map_shared(descriptor, PART, 0)
    gc.collect()
    assert is_mapped(others)
    assert not is_mapped(path)

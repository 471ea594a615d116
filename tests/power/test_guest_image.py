import lzma
from pathlib import Path

import pytest

from tests.power import guest_image

DEPENDENCIES = """kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2/jbd2.ko
kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko
kernel/lib/crc16.ko:
kernel/drivers/virtio/virtio-pci.ko.xz: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "modules.dep").write_text(DEPENDENCIES, encoding="ascii")
    return tmp_path


def test_modules_are_loaded_behind_what_they_need(modules: Path) -> None:
    order = guest_image._with_dependencies(modules, ["virtio_pci", "ext4"])
    names = [path.name for path in order]
    assert names == ["virtio.ko", "virtio-pci.ko.xz", "jbd2.ko", "crc16.ko", "ext4.ko"]


def test_a_module_that_is_built_in_is_there_too(modules: Path) -> None:
    (modules / "modules.builtin").write_text("kernel/drivers/block/virtio_blk.ko\n", encoding="ascii")
    assert {"virtio_blk", "virtio_pci", "ext4"} <= guest_image._brought(modules)
    assert guest_image._with_dependencies(modules, ["virtio_blk"]) == []


def test_packed_modules_are_unpacked(tmp_path: Path) -> None:
    packed, plain = tmp_path / "a.ko.xz", tmp_path / "b.ko"
    packed.write_bytes(lzma.compress(b"module"))
    plain.write_bytes(b"module")
    assert guest_image._unpacked(packed) == guest_image._unpacked(plain) == b"module"


def test_orders_stand_behind_the_programs_for_the_kernel_to_unpack_both() -> None:
    archive = guest_image.with_orders(b"programs", {"publish": True})
    assert archive.startswith(b"programs070701")
    assert b'{"publish": true}' in archive
    assert len(archive) % 512 == len(b"programs")

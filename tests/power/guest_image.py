"""The machine for QEMU: this system's kernel, busybox, and the Python that runs this, in two images.

The root file system (interpreter, standard library, the packages aiorecover needs, their shared libraries) is built
once and kept under `.cache/`; it is read-only in the guest. The initramfs carries the kernel modules, aiorecover and
these tests as they stand now, and one boot's orders.
"""

import compileall
import hashlib
import importlib.metadata
import json
import lzma
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["missing_program", "newest_kernel", "program_files", "root_image", "with_orders"]

_REPOSITORY: Final = Path(__file__).parents[2]
_CACHE: Final = _REPOSITORY / ".cache" / "power"
_ORDERS: Final = "orders.json"
_PACKAGES: Final = ("aiokafka", "async-timeout", "packaging", "typing-extensions", "msgspec", "aiofiles", "cramjam")
_MODULES: Final = ("virtio_pci", "virtio_blk", "ext4")
_HELPFUL: Final = ("crc32c_generic",)  # ext4 asks for it at mounting; later kernels have it built in
_LEFT_OUT: Final = ("site-packages", "test", "tests", "idlelib", "ensurepip", "tkinter", "lib2to3", "config-*")
_PROGRAMS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "mkfs.ext4": "e2fsprogs",
    "ldd": "libc-bin",
}
_ROOT_SLACK: Final = 64 << 20  # ext4's own tables, and files rounded up to blocks
_UNCHECKED: Final = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the guest's clock and files' times do not matter
_INIT: Final = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t ext4 -o ro,noload /dev/vda /new
/bin/busybox mount -t ext4 /dev/vdb /new/data || echo "! the data disk cannot be mounted"
for name in proc sys dev repository; do /bin/busybox mount --bind /$name /new/$name; done
/bin/busybox mount -t tmpfs tmp /new/tmp
/bin/busybox ip link set lo up
exec /bin/busybox chroot /new /bin/busybox env PYTHONPATH=/packages:/repository PYTHONDONTWRITEBYTECODE=1 \\
    HOME=/tmp LC_ALL=C.UTF-8 {python} -m tests.power.guest {orders}
"""


def missing_program() -> str | None:
    """What has to be installed by hand before a guest can run, if anything."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return f"the guest is built for Linux on x86_64 machine={platform.machine()}"
    wanted = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if newest_kernel() is None:
        wanted.append("linux-image-amd64")
    if wanted:
        return f"apt-get install --no-install-recommends {' '.join(wanted)}"
    return None


def newest_kernel() -> tuple[Path, Path] | None:
    """Image and modules of a kernel that brings everything the guest needs."""
    for image in sorted(Path("/boot").glob("vmlinuz-*"), reverse=True):
        modules = Path("/lib/modules") / image.name.removeprefix("vmlinuz-")
        if all(name in _brought(modules) for name in _MODULES):
            return image, modules
    return None


def root_image() -> Path:
    """The guest's root file system; built when it is not there for this interpreter and these packages."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    recipe = json.dumps([sys.version, sys.base_prefix, versions, Path(__file__).read_text(encoding="utf-8")])
    image = _CACHE / f"root-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.ext4"
    if not image.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            staged = Path(folder) / "root"
            _stage(staged)
            unfinished = Path(folder) / "image"
            _pack(staged, unfinished)
            unfinished.rename(image)
    return image


def _stage(root: Path) -> None:
    for name in ("proc", "sys", "dev", "tmp", "data", "repository", "bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    python = Path(os.path.realpath(sys.executable))
    _copy(python, root)
    for name in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        source = Path(os.path.realpath(name))
        shutil.copytree(
            source, _inside(root, source), ignore=shutil.ignore_patterns(*_LEFT_OUT, "*.a"), dirs_exist_ok=True
        )
    for name in _PACKAGES:
        _copy_package(name, root / "packages")
    shutil.copy2(str(shutil.which("busybox")), root / "bin" / "busybox")
    binaries = [python, *(path for path in root.rglob("*.so*") if path.is_file())]
    for library in _libraries(binaries):
        _copy(library, root)
    compileall.compile_dir(root, quiet=2, force=True, invalidation_mode=_UNCHECKED, maxlevels=20)


def _copy_package(name: str, target: Path) -> None:
    for entry in importlib.metadata.files(name) or ():
        source = Path(str(entry.locate()))
        if ".." in entry.parts or not source.is_file():
            continue  # console scripts lie elsewhere
        (target / entry).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / entry)


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Every shared library that the binaries ask for, under the names they ask by."""
    found: set[Path] = set()
    for binary in binaries:
        told = subprocess.run(["ldd", str(binary)], check=False, capture_output=True, text=True).stdout
        found.update(Path(path) for path in re.findall(r"(/\S+) \(0x", told))
    return found


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _copy(path: Path, root: Path) -> None:
    target = _inside(root, path)
    if root in path.parents or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)


def _pack(staged: Path, image: Path) -> None:
    used = sum(path.lstat().st_size + 4096 for path in staged.rglob("*"))
    with image.open("wb") as file:
        file.truncate(used + _ROOT_SLACK)
    command = ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(staged), str(image)]
    subprocess.run(command, check=True, capture_output=True)


# -- the initramfs -----------------------------------------------------------------------------------------------------


def program_files(modules: Path) -> bytes:
    """Start script, kernel modules, aiorecover and these tests, as a cpio archive."""
    files: dict[str, bytes] = {"bin/busybox": Path(str(shutil.which("busybox"))).read_bytes()}
    files["init"] = _INIT.format(python=os.path.realpath(sys.executable), orders=f"/repository/{_ORDERS}").encode()
    order = _with_dependencies(modules, [*_MODULES[:-1], *_HELPFUL, _MODULES[-1]])
    files["modules/order"] = "\n".join(path.name for path in order).encode()
    files.update({f"modules/{path.name}": _unpacked(path) for path in order})
    for source in _sources():
        name = Path("repository") / source.relative_to(_REPOSITORY)
        files[str(name)] = source.read_bytes()
        files[str(name.parent / "__pycache__" / f"{name.stem}.{sys.implementation.cache_tag}.pyc")] = _compiled(source)
    return _cpio(files)


def _compiled(source: Path) -> bytes:
    """Compiling in the guest would take seconds of each boot."""
    with tempfile.NamedTemporaryFile(suffix=".pyc") as file:
        py_compile.compile(str(source), file.name, doraise=True, invalidation_mode=_UNCHECKED)
        return Path(file.name).read_bytes()


def _sources() -> Iterator[Path]:
    yield from (_REPOSITORY / "aiorecover").rglob("*.py")
    yield _REPOSITORY / "tests" / "__init__.py"
    yield from (_REPOSITORY / "tests" / "power").glob("*.py")


def with_orders(archive: bytes, orders: Mapping[str, object]) -> bytes:
    """The archive and, behind it, one boot's orders: the kernel unpacks one archive after the other."""
    return archive + _cpio({f"repository/{_ORDERS}": json.dumps(orders).encode()})


def _with_dependencies(modules: Path, names: Iterable[str]) -> list[Path]:
    """Module files in the order in which they can be loaded; without those that the kernel has built in."""
    table = {_module_name(path): (path, rest.split()) for path, _, rest in _listed(modules / "modules.dep")}
    order: dict[str, None] = {}
    for name in names:
        path, needs = table.get(name, ("", []))
        order.update(dict.fromkeys([*reversed(needs), path]))
    return [modules / path for path in order if path]


def _brought(modules: Path) -> set[str]:
    """Names of the modules that the kernel has, built in or to be loaded."""
    return {_module_name(path) for name in ("modules.dep", "modules.builtin") for path, *_ in _listed(modules / name)}


def _listed(table: Path) -> list[tuple[str, str, str]]:
    if not table.exists():
        return []
    return [line.partition(":") for line in table.read_text(encoding="ascii").splitlines()]


def _module_name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _unpacked(module: Path) -> bytes:
    """Distributions pack modules; busybox does not unpack them."""
    data = module.read_bytes()
    return lzma.decompress(data) if module.suffix == ".xz" else data


def _cpio(files: Mapping[str, bytes]) -> bytes:
    """A "newc" archive: what Linux takes as an initramfs."""
    parents = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, 0o040755, b"") for name in sorted(parents)]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    packed = b"".join(_cpio_entry(index, *entry) for index, entry in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1))
    return packed + bytes(-len(packed) % 512)


def _cpio_entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)

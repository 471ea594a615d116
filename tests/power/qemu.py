"""One boot of the guest in QEMU, as the host sees it."""

import json
import os
import selectors
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.power.guest_image import newest_kernel, program_files, root_image, with_orders
from tests.power.recovery import Found
from tests.power.words import Said, hear

__all__ = ["Boot", "GuestFailedError", "Machine"]

_MEMORY_MIB: Final = 512
_ANSWER_BYTES: Final = 32 << 20
_WITHIN_S: Final = 240.0  # an emulated processor on a busy machine; a boot usually takes under 30 s
_KERNEL_OPTIONS = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on rdinit=/init"
"""``no_timer_check``: on a busy host the emulated timer is too late for it, and the kernel would give up."""


class GuestFailedError(AssertionError):
    """The guest did not do what it was told; the end of its console is attached."""


@dataclass(frozen=True)
class Boot:
    """What one boot told: what it found, and what it said on the console before it died."""

    found: Found
    said: list[Said]


class Machine:
    """A guest with one disk of its own; it is booted again and again."""

    def __init__(self, work: Path, disk: Path) -> None:
        kernel = newest_kernel()
        assert kernel is not None
        self._kernel, modules = kernel
        self._programs = program_files(modules)
        self._root = root_image()
        self._work = work
        self._disk = disk
        self._answer = work / "answer"

    def boot(self, orders: dict[str, object], kill_after: int | None) -> Boot:
        """Boot, and wait for the end; ``kill_after`` so many acknowledgements QEMU is killed, None: it ends itself."""
        initramfs = self._work / "initramfs"
        initramfs.write_bytes(with_orders(self._programs, orders))
        self._answer.write_bytes(b"")
        os.truncate(self._answer, _ANSWER_BYTES)
        console = self._run(self._command(initramfs), kill_after)
        lines = console.decode("ascii", "replace").splitlines()
        if "recovered" not in lines or any(line.startswith("!") for line in lines):
            raise GuestFailedError(f"the guest failed: {console[-3000:].decode('ascii', 'replace')}")
        return Boot(self._found(), hear(lines))

    def _command(self, initramfs: Path) -> list[str]:
        drives = [(self._root, ",readonly=on"), (self._disk, ",cache=writeback"), (self._answer, "")]
        return [
            *(
                "qemu-system-x86_64",
                "-accel",
                "tcg",
                "-cpu",
                "max",
                "-m",
                str(_MEMORY_MIB),
                "-nodefaults",
                "-no-reboot",
            ),
            *("-display", "none", "-monitor", "none", "-serial", "stdio"),
            *("-kernel", str(self._kernel), "-initrd", str(initramfs)),
            *("-append", _KERNEL_OPTIONS),
            *(word for file, more in drives for word in ("-drive", f"file={file},if=virtio,format=raw{more}")),
        ]

    def _run(self, command: list[str], kill_after: int | None) -> bytes:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        console = bytearray()
        until = time.monotonic() + _WITHIN_S
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while time.monotonic() < until:
                    if not selector.select(timeout=1.0):
                        continue
                    data = os.read(process.stdout.fileno(), 65536)
                    console += data
                    if not data or (kill_after is not None and console.count(b"\nA ") >= kill_after):
                        return bytes(console)
            raise GuestFailedError(f"the guest does not end: {console[-3000:].decode('ascii', 'replace')}")
        finally:
            process.kill()
            process.wait()
            console += process.stdout.read()
            process.stdout.close()

    def _found(self) -> Found:
        data = self._answer.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        told = json.loads(data[8 : 8 + length])
        records = [((epoch, sequence), tuple(name) if name else None) for (epoch, sequence), name in told["records"]]
        return Found(told["epoch"], records, [tuple(missing) for missing in told["missing"]], told["damaged_slots"])

"""What is installed: where it runs, what its extras are for, and what its metadata and its files say."""

import subprocess
import sys

import pytest

# A system that lacks what only Linux has; `sys.platform` and `platform.system()` say which one it is.
ELSEWHERE = """\
import os, platform, sys
sys.platform = sys.argv[1]
platform.system = lambda: sys.argv[2]
for name in ("fcntl", "mmap", "uvloop"):
    sys.modules[name] = None  # an import of it raises ModuleNotFoundError
for name in ("fdatasync", "memfd_create", "posix_fallocate", "register_at_fork", "statvfs", "uname"):
    delattr(os, name)
try:
    import aiorecover
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(("name", "system"), [("darwin", "Darwin"), ("win32", "Windows")])
def test_another_system_than_linux_is_named_by_the_import(name: str, system: str) -> None:
    command = [sys.executable, "-c", ELSEWHERE, name, system]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"ImportError aiorecover needs Linux, and this is {system}: "), done.stderr

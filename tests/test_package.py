"""The installed package: on which systems it runs, and which modules its extras are for."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.test_layers import MODULES, ROOT, imported, is_within

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


# -- the extras --------------------------------------------------------------------------------------------------------

# The modules that each extra is for.
MODULES_OF = {
    "cli": ["aiorecover.cli", "aiorecover.integrations.settings"],
    "cloudevents": ["aiorecover.integrations.cloudevents"],
    "demo": ["aiorecover.cli", "aiorecover.testing"],
    "fastapi": ["aiorecover.integrations.fastapi"],
    "faststream": ["aiorecover.integrations.faststream"],
    "litestar": ["aiorecover.integrations.litestar"],
    "metrics": ["aiorecover.integrations.prometheus", "aiorecover.integrations.opentelemetry"],
    "serializers": ["aiorecover.integrations.serializers"],
    "settings": ["aiorecover.integrations.settings"],
    "spark": ["aiorecover.spark"],
    "speed": ["aiorecover.ring"],
    "starlette": ["aiorecover.integrations.starlette"],
    "tracing": ["aiorecover.integrations.tracing"],
}
BOUNDS = {"pandas", "pydantic"}  # imported by pyspark and FastAPI: the extra says which versions
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def distribution(requirement: str) -> str:
    """Return the name of what is required, in lower case and with hyphens."""
    return re.split(r"[^\w-]", requirement)[0].replace("_", "-").lower()


installed = cache(packages_distributions)


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all"}))
def test_the_modules_of_an_extra_import_its_packages(extra: str) -> None:
    modules = [name for name in MODULES if any(is_within(name, prefix) for prefix in MODULES_OF[extra])]
    used = {name.partition(".")[0] for module in modules for name in imported(module)}
    brought = {one for package in used for one in installed().get(package, ())}
    wanted = set(map(distribution, EXTRAS[extra])) - BOUNDS
    assert wanted
    assert wanted - set(map(distribution, brought)) == set()


def test_the_extra_all_is_all_the_others() -> None:
    [everything] = EXTRAS["all"]
    assert sorted(re.findall(r"[\w-]+", everything.partition("[")[2])) == sorted(EXTRAS.keys() - {"all"})

"""`make prove WHAT=sanitize`: the writer in C with the address and the undefined-behaviour sanitizers, under its tests.

It is built into a copy of the package, so the one that is installed stays. CPython's own memory is taken from malloc
meanwhile, so that what lies outside of an object is seen. Leaks are counted by the tests: at its end an interpreter
leaves much behind on purpose. Needs gcc with libasan and libubsan.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.prove.rounds import chosen, progress

REPOSITORY = Path(__file__).parents[2]
COPIED = ("aiorecover", "tests", "pyproject.toml")
TESTED = ("tests/ring/test_speedups.py", "tests/ring/test_space.py", "tests/model")
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def main(arguments: Sequence[str]) -> int:
    """Build and test; 2: there is no compiler with sanitizers."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove sanitize", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the random steps")
    parser.add_argument("--count", type=int, default=1, help="how often, each time with the next seed")
    options = parser.parse_args(arguments)
    seed = chosen(options.seed)
    compiler = shutil.which("gcc")
    libraries = [] if compiler is None else [_library(compiler, name) for name in ("libasan.so", "libubsan.so")]
    if compiler is None or not all(libraries):
        print("gcc with libasan and libubsan is needed: install gcc", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as copy:
        place = Path(copy)
        _copy(place)
        _build(compiler, place)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(place),
        }
        environment.pop("AIORECOVER_PURE_PYTHON", None)
        for number in range(seed, seed + options.count):
            progress(f"seed {number}")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--capture=sys",
                f"--hypothesis-seed={number}",
            ]
            if subprocess.run([*command, *TESTED], cwd=place, env=environment, check=False).returncode:
                return 1
    return 0


def _library(compiler: str, name: str) -> str:
    """The path of a runtime library; empty where the compiler has none."""
    said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(said.stdout.strip())
    return str(path.resolve()) if path.is_absolute() else ""


def _copy(place: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "_speedups*.so")
    for name in COPIED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, place / name, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, place / name)


def _build(compiler: str, place: Path) -> None:
    source = place / "aiorecover/_speedups.c"
    built = source.with_suffix(str(sysconfig.get_config_var("EXT_SUFFIX")))
    include = f"-I{sysconfig.get_path('include')}"
    command = [compiler, *FLAGS, *WARNINGS, "-shared", "-fPIC", include, str(source), "-o", str(built)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.prove fuzz --seed S --count N [--target NAME]`: arbitrary files and frames, damage, forgeries.

Driven by atheris: inputs that reach new branches of what reads and opens (`INSTRUMENTED`) are kept and changed further.
The count is shared by the targets, in rounds of a process each: round r has the seed S + r - 1, so the number that a
failed round printed repeats it. `--input FILE` runs one input alone, without atheris: the one that a failed round kept.

Exit status: 0 proved, 1 a promise was broken, a crash or a hang (the input is kept and named), 2 cannot run.
"""

import argparse
import importlib
import importlib.util
import json
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["TARGETS", "main"]

TARGETS = ("files", "frames", "directories", "forgeries")
ROUND = 100_000  # runs in one process: long enough to go deep, short enough to be repeated
LONGEST_INPUT = 256  # bytes of an input: some forty edits
LONGEST_RUN_S = 30  # one input; it takes milliseconds
MEMORY_MB = 2048
INSTRUMENTED = [
    *("aiorecover.wal", "aiorecover.record", "aiorecover.delivery.resume", "aiorecover.delivery.journal"),
    *("aiorecover.delivery.dead_letters", "aiorecover.delivery.refusal"),
]

_MISSING = (
    "atheris is not installed: it exists for Linux on x86_64 (Python 3.11 to 3.14); "
    "python -m pip install 'atheris>=3', then run this again"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    if options.input is not None:
        return _one_input(options.target or TARGETS[0], options.input)
    if importlib.util.find_spec("atheris") is None:
        print(_MISSING, file=sys.stderr)
        return 2
    if options.child:
        return _child(options.target, options.seed, options.count)
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    return _prove([options.target] if options.target else list(TARGETS), seed, options.count)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove fuzz", description="arbitrary files and frames, forgeries"
    )
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many runs (default 1000000)")
    parser.add_argument("--target", choices=TARGETS, help="only this one (default all)")
    parser.add_argument("--input", type=Path, help="run this one input")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _prove(targets: Sequence[str], seed: int, count: int) -> int:
    began = time.monotonic()
    ran: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for number, (target, runs) in enumerate(_rounds(targets, count)):
        print(f"round {number + 1}: target={target} seed={seed + number} runs={runs}", flush=True)
        found = _round(target, seed + number, runs)
        if found is None:
            print(f"repeat: python -m tests.prove fuzz --target {target} --seed {seed + number} --count {runs}")
            return 1
        ran[target] += sum(found.values())
        ends.update({f"{target}: {end}": times for end, times in found.items()})
    for end, times in sorted(ends.items()):
        print(f"  {end:40}{times}")
    total = " ".join(f"{target}={ran[target]}" for target in targets)
    print(f"proved: seed={seed} runs={ran.total()} {total} crashes=0 hangs=0 seconds={time.monotonic() - began:.0f}")
    return 0


def _rounds(targets: Sequence[str], count: int) -> list[tuple[str, int]]:
    shares = [(target, count // len(targets) + (index < count % len(targets))) for index, target in enumerate(targets)]
    return [(target, min(ROUND, share - begun)) for target, share in shares for begun in range(0, share, ROUND)]


def _round(target: str, seed: int, runs: int) -> Counter[str] | None:
    """How the inputs of one process ended; None when one of them broke something."""
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-fuzz-{seed}-"))
    command = [sys.executable, "-m", "tests.prove", "fuzz", "--child"]
    command += ["--target", target, "--seed", str(seed), "--count", str(runs)]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.getcwd()}  # noqa: PTH109 - an environment is text
    with (directory / "log").open("wb") as log:
        status = subprocess.run(command, env=environment, stderr=log, stdout=log, check=False).returncode
    words = (directory / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    tallies = [line.removeprefix("tally ") for line in words if line.startswith("tally ")]
    if status == 0 and tallies:
        found: Counter[str] = Counter(json.loads(tallies[-1]))
        if found.total() == runs:
            (directory / "log").unlink()
            directory.rmdir()
            return found
    print("\n".join(words[-30:]))
    print(f"NOT OK: status={status} kept: {directory} (its log) and the input named above", flush=True)
    return None


# -- one process ---------------------------------------------------------------------------------------------------


def _target(name: str) -> Callable[[bytes, Counter[str]], None]:
    if name == "frames":
        from tests.fuzz.frames import read_arbitrary_frames  # noqa: PLC0415 - under atheris's import hook

        return read_arbitrary_frames
    if name == "directories":
        from tests.fuzz.directories import open_damaged_directories  # noqa: PLC0415 - likewise

        return open_damaged_directories
    if name == "forgeries":
        from tests.fuzz.forged import open_forged_directories  # noqa: PLC0415 - likewise

        return open_forged_directories
    from tests.fuzz.files import open_arbitrary_files  # noqa: PLC0415 - likewise

    return open_arbitrary_files


def _one_input(name: str, path: Path) -> int:
    tally: Counter[str] = Counter()
    try:
        _target(name)(path.read_bytes(), tally)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        print(f"NOT OK: {type(error).__name__}: {error}")
        return 1
    print(f"ended: {dict(tally)}")
    return 0


def _child(name: str, seed: int, runs: int) -> int:
    """Fuzz in this process; the last line says how the inputs ended."""
    atheris = importlib.import_module("atheris")  # only the fuzzer needs it, and not everywhere is it to be had
    logging.disable(logging.CRITICAL)  # every damage is logged
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = _target(name)
    tally: Counter[str] = Counter()
    ran = 0

    def run(data: bytes) -> None:
        nonlocal ran
        ran += 1
        try:
            target(data, tally)
        finally:
            if ran >= runs:
                print(f"tally {json.dumps(tally)}", flush=True)

    flags = {
        "atheris_runs": runs,
        "seed": seed % (1 << 31) + 1,  # 0 would be the clock
        "max_len": LONGEST_INPUT,
        "len_control": 0,
        "timeout": LONGEST_RUN_S,
        "rss_limit_mb": MEMORY_MB,
        "artifact_prefix": f"{tempfile.gettempdir()}/aiorecover-fuzz-{name}-{seed}-",
    }
    atheris.Setup([sys.argv[0], *(f"-{flag}={value}" for flag, value in flags.items())], run)
    try:
        atheris.Fuzz()
    except SystemExit as end:
        return int(end.code or 0)
    return 0

"""`python -m tests.prove mutants --seed S --count N [--jobs J]`: small changes of `aiorecover.wal`, one at a time.

A test suite is as good as the faults that it notices. Each mutant changes one place of the package: a comparison, a
constant, a sign, a condition, a statement left out, a result, two arguments. The tests of ``tests/wal`` that reach the
changed line are run, the quick ones first and for less than a minute; a mutant that they do not notice has survived,
and is listed: with its judgement, where `survivors` has one.

The same seed and count choose the same mutants of the same code; ``--skip`` leaves out the first ones, which an earlier
run has tried. Each runs in a copy of the tree; nothing is changed
here. mutmut runs every function through a dispatcher, so it would not be the package's own instructions that the tests
of signal handlers interrupt; cosmic-ray changes the tree that it runs in; neither draws a sample by a seed.

Exit status: 0 enough were killed, 1 too few, 2 the tests are not green to begin with or cannot run.
"""

import argparse
import ast
import concurrent.futures
import importlib.util
import itertools
import os
import queue
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.prove.survivors import Change, judged

__all__ = ["Mutant", "changes_of", "main", "mutants_of"]

ROOT = Path(__file__).parents[2]
PACKAGE = Path("aiorecover/wal")
COPIED = (
    "aiorecover",
    "tests/wal",
    "tests/protocols",
    "tests/support",
    "tests/__init__.py",
    "tests/conftest.py",
    "pyproject.toml",
)
ENOUGH = 0.85  # of the mutants, killed
BUDGET_S = 40  # of tests for one mutant, as long as they took without it: the slowest look for rarer things
PATIENCE = 4  # times as long as its tests took, and START_S: then a mutant hangs, and is noticed
START_S = 30
BASELINE_S = 3600  # all of them once, measured: 12 minutes of one core
SICK = 0.02  # of the tests may fail while they are measured, which takes twice the time of their limits
MEMORY_KB = 4 << 20  # address space: a mutant may grow without bound
FILE_BLOCKS = 2 << 20  # of 512 bytes: 1 GiB, likewise

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}  # fmt: skip
_COMMUTATIVE = ("max", "min")
_TALK = ("log", "message")  # what is said to people is not what is looked for here


@dataclass(frozen=True, order=True)
class Mutant:
    """One change: ``text`` instead of the characters ``start`` to ``stop`` of the file."""

    file: str
    line: int
    start: int
    stop: int
    text: str

    def apply(self, source: str) -> str:
        """The file with the change."""
        return source[: self.start] + self.text + source[self.stop :]

    def lines(self, source: str) -> tuple[str, str]:
        """The changed line, before and after."""
        return source.splitlines()[self.line - 1].strip(), self.apply(source).splitlines()[self.line - 1].strip()


# -- what can be changed -------------------------------------------------------------------------------------------


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every change of one module, in the order of its text."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def at(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    found = set()
    for node, start, stop, text in _changes(ast.parse(source), source, at):
        mutant = Mutant(file, node.lineno, start, stop, text)
        changed = mutant.apply(source)
        counted = "pragma: no cover" not in source.splitlines()[node.lineno - 1]
        if counted and changed != source and _compiles(changed):
            found.add(mutant)
    return sorted(found)


@cache
def changes_of(file: str, source: str) -> Mapping[Mutant, Change]:
    """Every mutant of one module, as it is judged."""
    functions = list(_functions_in(ast.parse(source), ()))
    alike: Counter[tuple[str, str, str]] = Counter()
    found = {}
    for mutant in mutants_of(file, source):
        look = (_function_at(functions, mutant.line), *mutant.lines(source))
        alike[look] += 1
        found[mutant] = Change(file, *look, alike[look])
    return found


def _function_at(functions: Iterable[tuple[int, int, str]], line: int) -> str:
    """The innermost one that the line belongs to; empty for what runs at import."""
    return max(((first, name) for first, last, name in functions if first <= line <= last), default=(0, ""))[1]


def _functions_in(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    """First line, last line and name of each; decorators and default values run outside."""
    for child in ast.iter_child_nodes(node):
        path = outer
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            path = (*outer, child.name)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.body[0].lineno, child.end_lineno or child.lineno, ".".join(path)
        yield from _functions_in(child, path)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _At:
    """Character offsets of nodes."""

    def __init__(self, source: str, at: object) -> None:
        self.source = source
        self._at = at

    def start(self, node: ast.AST) -> int:
        return self._at(node.lineno, node.col_offset)  # type: ignore[operator,attr-defined,no-any-return]

    def stop(self, node: ast.AST) -> int:
        return self._at(node.end_lineno, node.end_col_offset)  # type: ignore[operator,attr-defined,no-any-return]

    def text(self, node: ast.AST) -> str:
        return self.source[self.start(node) : self.stop(node)]


_Change = tuple["ast.expr | ast.stmt", int, int, str]


def _changes(tree: ast.Module, source: str, at: object) -> Iterator[_Change]:
    where = _At(source, at)
    for node in _walk(tree):
        if isinstance(node, ast.expr):
            yield from _of_expression(node, where)
        elif isinstance(node, ast.stmt):
            yield from _of_statement(node, where)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs: no annotations, docstrings, decorators, nor what is only said."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_talk(child):
                yield from _walk(child)


def _is_talk(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring, or the ... of a protocol
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).split(".")[0] in _TALK
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target) in {*_TALK, "__slots__", "__all__"} or isinstance(node.value, ast.JoinedStr)
    return isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom)


def _of_expression(node: ast.expr, where: _At) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            yield node, where.stop(left), where.start(right), f" {_COMPARISONS[type(operator)]} "
            left = right
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        old, new = _ARITHMETIC[type(node.op)]
        between = where.source[where.stop(node.left) : where.start(node.right)]
        if between.count(old) == 1:
            yield node, where.stop(node.left), where.start(node.right), between.replace(old, new)
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            between = where.source[where.stop(left) : where.start(right)]
            yield node, where.stop(left), where.start(right), between.replace(old, new)
    else:
        yield from _of_operand(node, where)


def _of_operand(node: ast.expr, where: _At) -> Iterator[_Change]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, where.start(node), where.stop(node), f"({where.text(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        new = str(not node.value) if isinstance(node.value, bool) else f"({where.text(node)} + 1)"
        yield node, where.start(node), where.stop(node), new
    elif isinstance(node, ast.Call) and _order_matters(node):
        first, second = node.args[:2]
        between = where.source[where.stop(first) : where.start(second)]
        yield node, where.start(first), where.stop(second), where.text(second) + between + where.text(first)
    elif isinstance(node, ast.IfExp):
        yield node.test, where.start(node.test), where.stop(node.test), f"(not ({where.text(node.test)}))"


def _order_matters(call: ast.Call) -> bool:
    """Whether its first two arguments can be swapped, and that is another call: not in ``max(a, b)``.

    With a ``key`` it is, which of two equal ones is chosen.
    """
    if len(call.args) < 2 or any(isinstance(argument, ast.Starred) for argument in call.args):
        return False
    return bool(call.keywords) or not (isinstance(call.func, ast.Name) and call.func.id in _COMMUTATIVE)


def _of_statement(node: ast.stmt, where: _At) -> Iterator[_Change]:
    if isinstance(node, ast.If | ast.While):
        yield node.test, where.start(node.test), where.stop(node.test), f"not ({where.text(node.test)})"
    elif isinstance(node, ast.Return) and node.value is not None and where.text(node.value) != "None":
        yield node, where.start(node), where.stop(node), "return None"
    elif isinstance(node, ast.Break | ast.Continue):
        yield node, where.start(node), where.stop(node), "continue" if isinstance(node, ast.Break) else "break"
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
    ):
        yield node, where.start(node), where.stop(node), "pass"


# -- the tests -----------------------------------------------------------------------------------------------------


@dataclass
class Suite:
    """What the unmutated tests do: how long each takes, and who reaches which line."""

    seconds: dict[str, float]
    reach: dict[tuple[str, int], set[str]]

    def for_line(self, file: str, line: int) -> list[str]:
        """The tests to run, the quick ones first, as many as `BUDGET_S` allows; what runs at import concerns all."""
        names = self.reach.get((file, line), set())
        reaching = self.seconds if "" in names else [name for name in self.seconds if name in names]
        quick_first = sorted(reaching, key=lambda name: (self.seconds[name], name))
        spent = itertools.accumulate(self.seconds[name] for name in quick_first)
        return [name for name, so_far in zip(quick_first, spent, strict=True) if so_far <= BUDGET_S] or quick_first[:1]

    def patience(self, names: Iterable[str]) -> float:
        """Seconds after which a mutant hangs in these tests."""
        return START_S + PATIENCE * sum(self.seconds[name] for name in names)


def _copy(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return target


def _run(tree: Path, arguments: Sequence[str], seconds: float) -> int | None:
    """Let pytest run in ``tree``; its exit status, or None when it took too long."""
    limits = f'ulimit -v {MEMORY_KB}; ulimit -f {FILE_BLOCKS}; exec "$@"'
    command = ["sh", "-c", limits, "sh", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    with (tree / "log").open("wb") as log:
        child = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # with whatever its tests have started
                child.wait()


def _baseline(tree: Path, jobs: int) -> Suite | None:
    """Run all tests once, with who reaches what; None when they are not green.

    A test that passes its own time limit because it is measured notices nothing here; it is named, and left out.
    """
    arguments = ["tests/wal", f"--cov={PACKAGE.parent}", "--cov-context=test", "--cov-report=", "--junitxml=times.xml"]
    arguments += ["-o", "junit_family=xunit1", "--numprocesses", str(jobs)]
    status = _run(tree, arguments, BASELINE_S)
    cases = list(_cases(tree / "times.xml")) if status in {0, 1} else []
    sick = [case.name for case in cases if not case.well]
    if not cases or len(sick) > SICK * len(cases):
        print((tree / "log").read_text(errors="replace")[-3000:], file=sys.stderr)
        return None
    for name in sick:
        print(f"left out, not green while it is measured: {name}", flush=True)
    import coverage  # noqa: PLC0415 - comes with pytest-cov; `main` has looked for it

    data = coverage.CoverageData(str(tree / ".coverage"))
    data.read()
    reach: dict[tuple[str, int], set[str]] = {}
    for measured in data.measured_files():
        file = str(Path(measured).resolve().relative_to(tree.resolve()))
        for line, contexts in data.contexts_by_lineno(measured).items():
            reach[file, line] = {context.split("|")[0] for context in contexts}
    return Suite({case.name: case.seconds for case in cases if case.well}, reach)


@dataclass(frozen=True)
class _Case:
    """How a test did without a mutant."""

    name: str
    seconds: float
    well: bool


def _cases(report: Path) -> Iterator[_Case]:
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        well = case.find("failure") is None and case.find("error") is None
        yield _Case(f"{case.attrib['file']}::{case.attrib['name']}", float(case.attrib["time"]), well)


# -- the run -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is not noticed."""
    options = _options(arguments)
    if importlib.util.find_spec("pytest_cov") is None:
        print("pytest-cov is not installed: python -m pip install pytest-cov, then run this again", file=sys.stderr)
        return 2
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    sources = {str(PACKAGE / path.name): path.read_text() for path in sorted((ROOT / PACKAGE).glob("*.py"))}
    possible = [mutant for file, source in sources.items() for mutant in mutants_of(file, source)]
    chosen = sorted(random.Random(seed).sample(possible, min(options.count, len(possible))))[options.skip :]
    print(f"mutants: seed={seed} possible={len(possible)} chosen={len(chosen)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aiorecover-mutants-") as directory:
        trees = [_copy(Path(directory) / str(number)) for number in range(options.jobs)]
        suite = _baseline(trees[0], options.jobs)
        if suite is None:
            print("the tests are not green as the code is: mend that first", file=sys.stderr)
            return 2
        began = time.monotonic()
        fates = list(_fates(chosen, sources, suite, trees))
    return _judge(fates, seed, time.monotonic() - began)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove mutants", description="mutation testing of the log")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=300, help="how many mutants (default 300)")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of them (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    return parser.parse_args(arguments)


def _fates(chosen: Sequence[Mutant], sources: dict[str, str], suite: Suite, trees: Iterable[Path]) -> Iterator[str]:
    """Of each mutant, in order: killed, hung, judged, survived or unreached."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)
    with concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
        one = [pool.submit(_fate, mutant, sources[mutant.file], suite, free) for mutant in chosen]
        for number, (mutant, future) in enumerate(zip(chosen, one, strict=True), 1):
            fate, seconds = future.result()
            print(f"  {number}/{len(chosen)} {fate:9} {seconds:5.1f} s {mutant.file}:{mutant.line}", flush=True)
            if fate in {"survived", "unreached"}:
                fate = _told(changes_of(mutant.file, sources[mutant.file])[mutant], fate)
            yield fate


def _told(change: Change, fate: str) -> str:
    print(f"    {change.function or 'at import'}, {change.number}", flush=True)
    print(f"    - {change.before}\n    + {change.after}", flush=True)
    why = judged().get(change)
    if why is None:
        return fate
    print(f"    judged: {why}", flush=True)
    return "judged"


def _fate(mutant: Mutant, source: str, suite: Suite, free: "queue.SimpleQueue[Path]") -> tuple[str, float]:
    tests = suite.for_line(mutant.file, mutant.line)
    if not tests:
        return "unreached", 0.0
    tree = free.get()
    began = time.monotonic()
    try:
        (tree / mutant.file).write_text(mutant.apply(source))
        status = _run(tree, ["-x", *tests], suite.patience(tests))
    finally:
        (tree / mutant.file).write_text(source)
        free.put(tree)
    fate = "hung" if status is None else "survived" if status == 0 else "killed"
    return fate, time.monotonic() - began


def _judge(fates: Sequence[str], seed: int, seconds: float) -> int:
    killed = sum(fate in {"killed", "hung"} for fate in fates)
    share = killed / max(1, len(fates))
    verdict = "proved" if share >= ENOUGH else "NOT OK"
    print(
        f"{verdict}: seed={seed} mutants={len(fates)} killed={killed} hung={fates.count('hung')} "
        f"judged={fates.count('judged')} survived={fates.count('survived')} "
        f"unreached={fates.count('unreached')} share={share:.3f} "
        f"seconds={seconds:.0f}"
    )
    return 0 if share >= ENOUGH else 1

"""What a mutant is; whether the tests notice them is the long proof."""

import random
from pathlib import Path

import pytest

from tests.prove import mutants
from tests.prove.mutants import PACKAGE, ROOT, Mutant, changes_of, mutants_of
from tests.prove.survivors import Change, entries, judged

SOURCE = '''"""1 < 2"""
LIMIT: int = 4  # é is two bytes


def decide(a, b):
    """Not this: 1 + 1."""
    log.info("nor this", 1 + 1)
    message = f"nor {a + b}"
    for item in a:
        if item < b and not item.done:
            break
        item.count += call("é", b)
    return a - b
'''

EXPECTED = [
    ("LIMIT: int = 4  # é is two bytes", "LIMIT: int = (4 + 1)  # é is two bytes"),
    ("if item < b and not item.done:", "if item <= b and not item.done:"),
    ("if item < b and not item.done:", "if item < b or not item.done:"),
    ("if item < b and not item.done:", "if item < b and (item.done):"),
    ("if item < b and not item.done:", "if not (item < b and not item.done):"),
    ("break", "continue"),
    ('item.count += call("é", b)', "pass"),
    ('item.count += call("é", b)', 'item.count += call(b, "é")'),
    ("return a - b", "return a + b"),
    ("return a - b", "return None"),
]  # fmt: skip


def test_every_change_is_made_where_it_belongs_and_what_is_only_said_is_left_alone() -> None:
    changed = [mutant.lines(SOURCE) for mutant in mutants_of("module.py", SOURCE)]
    assert sorted(changed) == sorted(EXPECTED)


@pytest.mark.parametrize("path", sorted((ROOT / PACKAGE).glob("*.py")), ids=lambda path: path.name)
def test_every_mutant_of_the_package_differs_in_one_place_and_compiles(path: Path) -> None:
    source = path.read_text()
    found: list[Mutant] = mutants_of("module.py", source)
    texts = {mutant.apply(source) for mutant in found}
    assert source not in texts
    assert len(texts) == len(found)


@pytest.mark.parametrize(
    ("call", "swapped"),
    [
        ("max(a, b)", None),
        ("min(a, b, c)", None),
        ("max(a, b, key=first)", "max(b, a, key=first)"),  # of two that are equal, the first one
        ("ring.max(a, b)", "ring.max(b, a)"),
        ("call(*a, b)", None),
    ],
)
def test_arguments_are_swapped_only_where_their_order_matters(call: str, swapped: str | None) -> None:
    changed = {mutant.apply(call) for mutant in mutants_of("module.py", call)}
    assert changed - {"pass"} == ({swapped} if swapped is not None else set())


def test_the_same_seed_chooses_the_same_mutants() -> None:
    found = mutants_of("module.py", SOURCE)
    assert random.Random(5).sample(found, 4) == random.Random(5).sample(mutants_of("module.py", SOURCE), 4)


def named(change: Change) -> str:
    return f"{change.function}: {change.before} -> {change.after} {change.number}"


@pytest.mark.parametrize("change", judged(), ids=named)
def test_what_is_judged_is_still_one_mutant_of_the_code(change: Change) -> None:
    changes = changes_of(change.file, (ROOT / change.file).read_text())
    assert list(changes.values()).count(change) == 1


def test_nothing_is_judged_twice() -> None:
    changes = [change for change, _ in entries()]
    assert sorted(judged()) == sorted(changes)


TWICE = """LIMIT = 1
class Reader:
    def look(self, most=1 + LIMIT):
        if self.empty:
            return False
        def inner():
            return False
        return False
def look():
    return False
"""


def test_what_looks_the_same_is_told_apart_by_its_function_and_by_its_number_there() -> None:
    told = [change for change in changes_of("module.py", TWICE).values() if change.after == "return None"]
    assert [(change.function, change.number) for change in told] == [
        ("Reader.look", 1),
        ("Reader.look.inner", 1),
        ("Reader.look", 2),
        ("look", 1),
    ]
    outside = {change.function for change in changes_of("module.py", TWICE).values() if "LIMIT" in change.before}
    assert outside == {""}


def test_the_quick_tests_that_reach_a_line_are_run_for_a_bounded_time() -> None:
    seconds = {"slow": mutants.BUDGET_S * 1.0, "quick": 1.0, "brief": 2.0, "elsewhere": 0.1}
    suite = mutants.Suite(seconds, {("file", 1): {"slow", "quick", "brief"}, ("file", 2): {"slow"}, ("file", 3): {""}})
    assert suite.for_line("file", 1) == ["quick", "brief"]
    assert suite.for_line("file", 2) == ["slow"]
    assert suite.for_line("file", 3) == ["elsewhere", "quick", "brief"]
    assert suite.for_line("file", 4) == []


def test_a_test_that_does_not_pass_while_it_is_measured_is_told_from_the_others(tmp_path: Path) -> None:
    report = tmp_path / "times.xml"
    case = '<testcase file="tests/wal/test_ring.py" name="{}" time="{}">{}</testcase>'
    cases = (
        case.format("a", 1, "") + case.format("b", 2.5, '<failure message="late"/>') + case.format("c", 3, "<error/>")
    )
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    found = list(mutants._cases(report))
    assert [(case.name, case.seconds, case.well) for case in found] == [
        ("tests/wal/test_ring.py::a", 1.0, True),
        ("tests/wal/test_ring.py::b", 2.5, False),
        ("tests/wal/test_ring.py::c", 3.0, False),
    ]

"""The layout of the package, read from its source: imports, pure modules, public names, docstrings."""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiorecover

ROOT = Path(aiorecover.__file__).parent
MODULES = {
    ".".join(["aiorecover", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# From the top down; a module may import its own layer and those below. The names are prefixes.
LAYERS = [
    [f"aiorecover.{edge}" for edge in ("__main__", "audit", "cli", "testing", "spark", "integrations", "sync")],
    ["aiorecover"],  # the public names
    ["aiorecover.producer"],
    ["aiorecover.dead_letters", "aiorecover.inbox"],
    ["aiorecover.runtime"],
    ["aiorecover.acceptor", "aiorecover.adoption", "aiorecover.manifests"],
    ["aiorecover.reporting"],
    ["aiorecover.kafka"],
    ["aiorecover.ring"],
    [
        f"aiorecover.{base}"
        for base in (
            *("config", "checks", "deduplicator", "serialization", "statistics", "receipt"),
            *("record_id", "log", "extras", "errors"),
        )
    ],
]
PUBLIC = 1

# State in, effects out: these decide, and their callers act. Imports that are named beside a module are allowed.
PURE = {
    "aiorecover.ring.format": (),
    "aiorecover.ring.notes": (),
    "aiorecover.ring.records": (),
    "aiorecover.ring.recovery": (),
    "aiorecover.kafka.lanes": (),
    "aiorecover.kafka.outcomes": (),
    "aiorecover.record_id": (),
    "aiorecover.deduplicator": (),
    "aiorecover.receipt": (),
    "aiorecover.serialization": (),
    "aiorecover.errors": (),
}
IMPURE = {
    *("asyncio", "concurrent", "threading", "uvloop", "signal", "subprocess"),
    *("os", "io", "mmap", "fcntl", "pathlib", "shutil", "tempfile", "aiofiles", "select", "socket"),
    *("time", "datetime", "random"),
}

NAMED_IN_THE_DESIGN = {
    *("RecoverableProducer", "Receipt", "DeliveryReport", "RecoverError", "ConfigError", "ClosedError"),
    *("EncodeError", "WalError", "WalLockedError", "WalFullError", "RecordTooLargeError", "WalFormatError"),
    *("WalCorruptError", "WalDestinationError", "WalIOError", "DeliveryError", "DeliveryPendingError"),
    "PermanentDeliveryError",
}


def imported(module: str) -> Iterator[str]:
    """The full names of everything a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively: name the module in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def layer_of(name: str) -> int:
    """The number of the layer that a module or a name in it belongs to: by the longest prefix that fits."""
    fitting = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if is_within(name, prefix)
    ]
    return max(fitting)[1]


def own_module(name: str) -> str:
    """The module of ours that an imported name is, or stands in."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_place_in_a_layer(module: str) -> None:
    """The package's own layer takes what nothing else claims: only the public names may stand there."""
    assert module == "aiorecover" or layer_of(module) != PUBLIC, "a new module: say in LAYERS where it belongs"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_only_down_the_layers(module: str) -> None:
    ours = [name for name in imported(module) if is_within(name, "aiorecover")]
    upward = [name for name in ours if layer_of(own_module(name)) < layer_of(module)]
    assert upward == []


@pytest.mark.parametrize("module", [name for name in MODULES if layer_of(name) > PUBLIC])
def test_nothing_inside_imports_the_public_names(module: str) -> None:
    """`from aiorecover import x` below the edges would make a circle that happens to work."""
    ours = [name for name in imported(module) if is_within(name, "aiorecover")]
    assert [name for name in ours if own_module(name) == "aiorecover"] == []


@pytest.mark.parametrize("module", [name for name in MODULES if is_within(name, "aiorecover.ring")])
def test_the_ring_knows_no_network(module: str) -> None:
    known = ("aiokafka", "confluent_kafka", "socket", "ssl", "aiorecover.kafka", "aiorecover.config")
    assert [name for name in imported(module) if any(is_within(name, one) for one in known)] == []


def test_only_one_module_of_the_ring_touches_the_disk() -> None:
    ring = [name for name in MODULES if is_within(name, "aiorecover.ring")]
    calls = {"mmap", "fcntl", "ctypes"}
    touching = {name for name in ring if calls & {one.partition(".")[0] for one in imported(name)}}
    assert touching == {"aiorecover.ring.files"}
    assert {name for name in ring if "os" in imported(name)} == {"aiorecover.ring.files", "aiorecover.ring.directory"}


@pytest.mark.parametrize("module", PURE)
def test_modules_that_decide_are_pure(module: str) -> None:
    allowed = PURE[module]
    found = [name for name in imported(module) if name.partition(".")[0] in IMPURE and name not in allowed]
    assert found == []


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_calls_nothing_that_reaches_outside(module: str) -> None:
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls & {"open", "print", "input", "exec", "eval", "__import__"} == set()


def test_one_private_part_of_aiokafka_is_used_in_one_module_only() -> None:
    private = {"_on_connection_closed", "_conns", "_get_conn", "_metadata_update", "_requests", "_writer"}
    using = {
        (name, node.attr)
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) != "self"
    }
    assert using <= {("aiorecover.kafka.client", "_on_connection_closed")}


def test_the_package_offers_what_the_design_names_and_nothing_by_accident() -> None:
    assert set(aiorecover.__all__) >= NAMED_IN_THE_DESIGN
    beyond = {"Statistics", "DeadLetter", "DeadLetters", "Deduplicator", "record_id_of"}
    assert set(aiorecover.__all__) - NAMED_IN_THE_DESIGN == beyond
    assert sorted(aiorecover.__all__, key=str.lower) == sorted(set(aiorecover.__all__), key=str.lower)
    for name in aiorecover.__all__:
        assert getattr(aiorecover, name).__name__ == name


def test_every_error_of_the_package_is_offered_and_in_the_one_tree() -> None:
    errors = {
        name
        for name, kind in vars(sys.modules["aiorecover.errors"]).items()
        if inspect.isclass(kind) and kind.__module__ == "aiorecover.errors"
    }
    assert errors <= set(aiorecover.__all__)
    assert all(issubclass(getattr(aiorecover, name), aiorecover.RecoverError) for name in errors)


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_says_what_it_does(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{module} does not say what it is"
    assert list(undocumented(tree, module)) == []


def undocumented(scope: ast.Module | ast.ClassDef, where: str) -> Iterator[str]:
    for node in scope.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        name = f"{where}.{node.name}"
        stub = not isinstance(node, ast.ClassDef) and is_stub(node)
        if not (ast.get_docstring(node) or stub):
            yield name
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node, name)


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A method of a protocol whose body is an ellipsis: the class says what it is for."""
    return len(node.body) == 1 and isinstance(node.body[0], ast.Expr) and ast.unparse(node.body[0]) == "..."

"""The programs of `examples/`, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["EXAMPLES", "loaded"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def loaded(name: str) -> ModuleType:
    """The example of this name, run as far as an import runs it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

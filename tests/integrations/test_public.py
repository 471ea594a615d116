"""The integrations stand on what every user has: public names, and nothing that the package itself would import."""

import ast
import re
import subprocess
import sys

import pytest

import aiorecover
from tests.test_layers import MODULES, imported, is_within, own_module

HERE = [
    f"aiorecover.integrations.{name}" for name in ("web", "starlette", "fastapi", "litestar", "metrics", "settings")
]
HERE += ["aiorecover.integrations.prometheus", "aiorecover.integrations.opentelemetry"]
HERE += [f"aiorecover.integrations.{name}" for name in ("faststream", "serializers", "cloudevents", "forwarding")]
HERE += ["aiorecover.integrations.tracing"]
PUBLIC = {f"aiorecover.{name}" for name in (*aiorecover.__all__, "__version__")} | {"aiorecover.config.Options"}
EXTRA = "aiorecover.extras.extra"  # by which a missing package is named, in one way everywhere


@pytest.mark.parametrize("module", HERE)
def test_an_integration_uses_public_names_alone(module: str) -> None:
    ours = [name for name in imported(module) if is_within(name, "aiorecover")]
    assert [name for name in ours if own_module(name) not in HERE and name not in {*PUBLIC, EXTRA}] == []
    attributes = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and re.match("_[^_]", node.attr)
        and ast.unparse(node.value) not in ("self", "cls")
    ]
    assert attributes == []


def test_the_package_imports_none_of_what_the_extras_bring() -> None:
    extras = {"fastapi", "starlette", "litestar", "pydantic", "pydantic_settings", "prometheus_client", "opentelemetry"}
    extras |= {"faststream", "confluent_kafka", "cloudevents"}
    program = f"import sys, aiorecover; print({extras!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

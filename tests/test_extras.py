"""Where the packages of an extra are missing, one line says how to install them."""

import importlib
import re
import sys

import pytest

from aiorecover.cli import main
from aiorecover.errors import ConfigError

NEEDS = {
    "aiorecover.cli.app": ("typer", "cli"),
    "aiorecover.integrations.cloudevents": ("cloudevents", "cloudevents"),
    "aiorecover.integrations.fastapi": ("fastapi", "fastapi"),
    "aiorecover.integrations.faststream": ("faststream", "faststream"),
    "aiorecover.integrations.litestar": ("litestar", "litestar"),
    "aiorecover.integrations.opentelemetry": ("opentelemetry", "metrics"),
    "aiorecover.integrations.prometheus": ("prometheus_client", "metrics"),
    "aiorecover.integrations.serializers": ("confluent_kafka", "serializers"),
    "aiorecover.integrations.settings": ("pydantic_settings", "settings"),
    "aiorecover.integrations.starlette": ("starlette", "starlette"),
    "aiorecover.integrations.tracing": ("opentelemetry", "tracing"),
    "aiorecover.spark.packages": ("pyspark", "spark"),
}


@pytest.mark.parametrize("module", NEEDS)
def test_a_missing_package_is_named_with_its_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, extra = NEEDS[module]
    for loaded in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    said = rf"{package}[.\w]* is not installed: pip install 'aiorecover\[{extra}]'"
    if module == "aiorecover.cli.app":
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert re.fullmatch(said + "\n", capsys.readouterr().err)
        return
    with pytest.raises(ConfigError, match=f"^{said}$") as missing:
        importlib.import_module(module)
    assert isinstance(missing.value, ImportError)

"""The site is built from docs/, README.md and docstrings without a warning."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import aiorecover
import aiorecover.spark
import aiorecover.testing

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--builder", "html"]
    ran = subprocess.run([*command, "docs", str(built)], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return built


def test_every_page_of_docs_is_in_the_menu(site: Path) -> None:
    start = (site / "index.html").read_text()
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in start, page.name


@pytest.mark.parametrize("module", [aiorecover, aiorecover.spark, aiorecover.testing], ids=lambda one: one.__name__)
def test_the_reference_has_every_public_name(site: Path, module: ModuleType) -> None:
    reference = (site / "reference.html").read_text()
    for name in module.__all__:
        places = module.__name__, getattr(getattr(module, name), "__module__", "")
        documented = [f'id="{place}.{name}"' in reference for place in places]
        assert any(documented) or isinstance(getattr(module, name), str | int), name

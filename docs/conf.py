"""How Sphinx builds the site: `make docs`."""

from importlib.metadata import version as version_of

project = "aiorecover"
author = "the aiorecover developers"
copyright = "aiorecover, Apache-2.0"  # noqa: A001 - Sphinx's name
release = version = version_of("aiorecover")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
smartquotes = False  # `--json` has two hyphens
default_role = "literal"  # `publish` in a docstring is code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
intersphinx_mapping: dict[str, tuple[str, None]] = {}  # the site is built without a network
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"aiorecover {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

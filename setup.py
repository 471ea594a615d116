"""Build the writer in C, which pyproject.toml cannot name yet; an installation goes without where nothing compiles.

With AIORECOVER_PURE_PYTHON set it is left out on purpose: the wheel is then one for every machine.
"""

import os

from setuptools import Extension, setup

WRITER = Extension("aiorecover._speedups", ["aiorecover/_speedups.c"], optional=True)

setup(ext_modules=[] if os.environ.get("AIORECOVER_PURE_PYTHON") else [WRITER])

"""Build the writer in C, which pyproject.toml cannot name yet; an installation goes without where nothing compiles."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("aiorecover._speedups", ["aiorecover/_speedups.c"], optional=True)])

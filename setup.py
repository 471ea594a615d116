"""What pyproject.toml cannot say yet: the twin of the writer in C, which is left out where nothing compiles it."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("aiorecover._speedups", ["aiorecover/_speedups.c"], optional=True)])

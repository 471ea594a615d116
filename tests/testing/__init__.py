"""Tests of `aiorecover.testing`."""

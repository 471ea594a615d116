"""Tests of what the benchmarks decide by, and that each still runs."""

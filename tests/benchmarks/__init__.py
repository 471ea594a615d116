"""Tests of what the benchmarks decide by: their figures, and whether everything was stored."""

"""Figures, measured side by side on one machine in one run: `python -m benchmarks`. README.md says how to read them."""

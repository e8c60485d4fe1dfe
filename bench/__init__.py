"""Benchmarks: one file per claim; `python -m bench` runs all of them."""

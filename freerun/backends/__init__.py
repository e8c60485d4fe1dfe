"""Implementations of the seams: generator backends (`backend.py`), and workers on a Ray cluster."""

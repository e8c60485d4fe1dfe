"""Evaluations: pinned held-out ones of a run, and those of `freerun eval`."""

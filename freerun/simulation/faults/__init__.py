"""Faults by seed: scenarios, scripted workers, the properties that every run must keep, and shrinking."""

"""Typed events and the run's store, from which everything shown is derived."""

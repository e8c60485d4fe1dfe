"""Typed events and the run's store: the one record that everything shown is derived from."""

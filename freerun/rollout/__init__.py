"""Workflows: from a prompt to the trajectories of its group."""

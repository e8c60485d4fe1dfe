"""Prompts: where they come from, in which order, and how they become tokens."""

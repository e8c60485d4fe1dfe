"""Interruptible continuous batching."""

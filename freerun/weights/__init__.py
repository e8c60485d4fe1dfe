"""Publish and load: how new weights reach running engines."""

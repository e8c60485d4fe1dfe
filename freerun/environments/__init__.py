"""Environments that come with the package: one module each with its prompts and its episode."""

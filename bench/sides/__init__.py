"""The two sides of a comparison: scripts that run in an environment of their own and are asked to work in turns."""

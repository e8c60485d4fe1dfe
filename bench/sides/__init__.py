"""The sides of a comparison: scripts that run in an environment of their own and work when they are asked."""

"""The sides of a comparison: scripts that run in separate environments and work on request."""

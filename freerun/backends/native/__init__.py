"""The embedded engine as a generator backend."""

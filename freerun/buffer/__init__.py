"""Gate and buffer: the bound on staleness."""

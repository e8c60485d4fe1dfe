"""Gate, groups and buffer: staleness is bounded here."""

"""What a run shows in a terminal: live view, lines, summary."""

"""Where a run is reported to: trackers, and what they are told."""

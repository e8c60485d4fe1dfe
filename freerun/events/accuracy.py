"""Formats accuracies for people, as `22.5 %`. JSON and CSV hold the share, 0.225."""

import math

UNKNOWN = "-"


def percent(share: float) -> str:
    """Format as `22.5 %`."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else UNKNOWN


def percent_within(share: float, low: float, high: float) -> str:
    """Format as `22.5 % [18.1 %, 27.3 %]`; without the interval if it is unknown."""
    interval = f" [{percent(low)}, {percent(high)}]" if math.isfinite(low) and math.isfinite(high) else ""
    return percent(share) + interval

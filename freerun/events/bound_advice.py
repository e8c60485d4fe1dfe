"""The most that a higher staleness bound or larger steps could gain, from a run's own measurements.

More batches in flight keep engines and trainer busy while they would wait for each other. They make no step
shorter: a trainer that was busy for some share of the time can train at most 1 / share times as much. That is a
limit, not a forecast; `freerun plan` simulates (docs/planning.md).
"""

MIN_GAIN_TOLD = 1.1


def most_to_gain(trainer_share: float | None) -> float | None:
    """The speedup if the trainer never waited; None if it is negligible."""
    if trainer_share is None or not 0 < trainer_share <= 1 / MIN_GAIN_TOLD:
        return None
    return 1 / trainer_share


def describe_bound(max_staleness: int, *, trainer_share: float | None) -> str:
    """For example `raise buffer.max_staleness above 2: the run can train at most 1.4 times as much`."""
    gain = most_to_gain(trainer_share)
    if gain is None:
        return "raise buffer.max_staleness"
    return f"raise buffer.max_staleness above {max_staleness}: the run can train at most {gain:.1f} times as much"

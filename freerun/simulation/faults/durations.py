"""Maximal durations of workers' actions in a scenario, in seconds; the dice choose a share of them."""

PARTS_PER_ROLLOUT = 3
"""Parts of a rollout, one token each."""
PART = 2.0
LONG_PART_SHARE = 0.3
"""Share of parts that take up to `Scenario.tail_seconds`."""
ENGINE_START = 8.0
LOAD = 1.5
SLOW_LOAD = 60.0
"""Additional time once an engine loads slowly."""
REPORT = 20.0
"""Fixed interval of an engine's reports."""
TRAINER_START = 1.0
TRAIN = 2.0
SLOW_TRAIN = 40.0
"""Additional time once the trainer is slow."""
PUBLISH = 1.0
SAVE = 4.0
SEAL = 0.5
GRADER_START = 0.1
GRADE = 0.02
WITHOUT_MACHINE = 500.0
"""Time until a rollout worker that lost its machine gets another one."""
STANDING_STILL = 1000.0
"""Time for which the controller is stopped."""

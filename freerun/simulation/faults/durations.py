"""How long the workers of a scenario take at most, in seconds; the dice choose a share of it."""

PARTS_PER_ROLLOUT = 3
"""Of a rollout, one token each."""
PART = 2.0
LONG_PART_SHARE = 0.3
"""Parts that take up to `Scenario.tail_seconds`."""
ENGINE_START = 8.0
LOAD = 1.5
SLOW_LOAD = 60.0
"""More, once an engine loads slowly."""
REPORT = 20.0
"""Between two reports of an engine; always."""
TRAINER_START = 1.0
TRAIN = 2.0
SLOW_TRAIN = 40.0
"""More, once the trainer slows down."""
PUBLISH = 1.0
SAVE = 4.0
SEAL = 0.5
GRADER_START = 0.1
GRADE = 0.02
WITHOUT_MACHINE = 500.0
"""Until a rollout worker that lost its machine gets another."""
STANDING_STILL = 1000.0
"""While the controller is stopped."""

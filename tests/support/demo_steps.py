"""The demo's first real run, step by step, as its page had it; what was not kept of it is said to be.

SmolLM2 learned times tables on two cores: 45 steps of 8 groups of 8, `max_staleness` 4. For each step: the clock
at its end, the seconds that the trainer had waited, entropy and effective sample size (None: no update was made,
since all rewards were equal), groups that were all right and all wrong, and its tokens by the age of their sample.
Which groups a step took was not kept: here they are the eight that were finished next.
"""

from freerun.events.events import AnyEvent, StepFinished, WeightsLoaded
from freerun.types import StepResult

GROUPS_IN_A_STEP, SAMPLES_IN_A_STEP = 8, 64
FIRST_VARIETY, LAST_VARIETY = 0.95, 0.15
"""Different texts in a group of 8: 7.6 at the start, 1.2 at the end; between them they fall evenly here."""
STEPS: tuple[tuple[float, float, float | None, float | None, int, int, tuple[int, ...]], ...] = (
    (31.02, 6.66, 1.92, 1.0, 0, 1, (520, 0, 0, 0, 0)),
    (36.16, 0.00, 1.94, 0.86, 0, 1, (0, 508, 0, 0, 0)),
    (41.13, 0.00, 1.99, 0.87, 0, 2, (0, 0, 536, 0, 0)),
    (45.40, 0.00, 2.13, 0.69, 0, 2, (0, 0, 0, 391, 0)),
    (50.94, 0.00, 2.47, 0.73, 0, 1, (0, 0, 0, 0, 532)),
    (57.25, 0.00, 1.24, 0.88, 0, 0, (0, 0, 0, 0, 514)),
    (62.49, 0.00, 1.05, 0.88, 0, 1, (0, 0, 0, 0, 460)),
    (67.87, 0.00, 1.13, 0.79, 0, 1, (0, 0, 0, 0, 455)),
    (72.88, 0.00, 0.86, 0.87, 1, 0, (0, 0, 0, 0, 426)),
    (77.13, 0.00, 1.08, 0.81, 1, 1, (0, 0, 0, 0, 435)),
    (81.01, 0.00, 0.93, 0.61, 1, 2, (0, 0, 0, 0, 356)),
    (85.20, 0.00, 0.83, 0.83, 3, 0, (0, 0, 0, 0, 322)),
    (89.02, 0.00, 0.97, 0.71, 3, 0, (0, 0, 0, 0, 371)),
    (91.56, 0.00, 0.62, 0.61, 5, 0, (0, 0, 0, 0, 273)),
    (94.12, 0.00, 0.6, 0.82, 6, 0, (0, 0, 0, 13, 279)),
    (96.21, 0.00, 0.59, 0.94, 5, 0, (0, 0, 0, 3, 283)),
    (98.79, 0.00, 0.48, 0.94, 5, 0, (0, 0, 0, 0, 333)),
    (101.52, 0.00, 0.46, 0.69, 5, 0, (0, 0, 0, 0, 346)),
    (103.07, 0.00, 1.06, 0.61, 7, 0, (0, 0, 0, 0, 403)),
    (105.10, 0.00, 0.75, 0.69, 5, 1, (0, 0, 0, 0, 339)),
    (107.12, 0.00, None, None, 7, 1, (0, 0, 0, 0, 308)),
    (116.06, 0.00, 0.36, 0.9, 4, 0, (0, 0, 0, 0, 271)),
    (117.48, 0.00, 0.15, 0.99, 7, 0, (0, 0, 0, 0, 251)),
    (119.95, 0.00, 0.68, 0.66, 7, 0, (0, 0, 0, 0, 282)),
    (123.11, 0.00, 0.52, 0.86, 4, 0, (0, 0, 0, 95, 198)),
    (126.43, 0.00, 0.52, 0.86, 4, 0, (0, 0, 0, 0, 303)),
    (127.96, 0.00, 1.38, 0.83, 6, 1, (0, 0, 0, 28, 263)),
    (129.47, 0.00, 0.58, 0.85, 7, 0, (0, 0, 0, 25, 230)),
    (131.02, 0.00, 0.38, 0.92, 7, 0, (0, 0, 0, 0, 369)),
    (132.68, 0.00, 0.11, 0.99, 7, 0, (0, 0, 0, 0, 265)),
    (134.22, 0.00, 0.46, 0.6, 7, 0, (0, 0, 0, 0, 239)),
    (134.27, 0.00, None, None, 8, 0, (0, 0, 1, 61, 291)),
    (136.47, 1.59, None, None, 8, 0, (6, 1, 22, 96, 125)),
    (141.34, 3.29, 0.25, 1.0, 7, 0, (120, 57, 7, 45, 27)),
    (142.88, 0.00, 0.26, 1.0, 5, 1, (0, 263, 0, 0, 0)),
    (144.33, 0.11, 0.19, 1.0, 8, 0, (0, 107, 125, 0, 0)),
    (144.43, 0.10, None, None, 8, 0, (0, 121, 97, 30, 0)),
    (147.97, 1.86, 0.66, 1.0, 7, 0, (153, 6, 74, 0, 0)),
    (151.45, 0.93, 0.34, 1.0, 6, 0, (7, 232, 2, 0, 0)),
    (151.51, 0.00, None, None, 8, 0, (0, 184, 52, 0, 0)),
    (157.82, 0.00, 0.22, 1.0, 7, 0, (0, 0, 230, 0, 0)),
    (158.01, 0.00, None, None, 7, 0, (0, 102, 6, 170, 0)),
    (160.26, 1.38, None, None, 8, 0, (7, 0, 223, 2, 0)),
    (162.04, 1.77, None, None, 8, 0, (129, 59, 0, 54, 0)),
    (163.60, 1.55, None, None, 8, 0, (174, 67, 0, 0, 0)),
)


def demo_steps(number: int) -> list[AnyEvent]:
    """Its first steps; gradient norms were not kept: all are the same here."""
    events: list[AnyEvent] = []
    begin = 10.0
    for version, (seconds, waited, entropy, size, right, wrong, tokens) in enumerate(STEPS[:number], start=1):
        num_tokens = sum(tokens)
        metrics = {
            "completion_length": num_tokens / SAMPLES_IN_A_STEP,
            "num_tokens": float(num_tokens),
            "equal_group_share": (right + wrong) / GROUPS_IN_A_STEP,
            "all_right_share": right / GROUPS_IN_A_STEP,
            "all_wrong_share": wrong / GROUPS_IN_A_STEP,
            "skipped_updates": 0.0,
            "distinct_text_share": FIRST_VARIETY + (LAST_VARIETY - FIRST_VARIETY) * version / len(STEPS),
        }
        if entropy is not None and size is not None:
            metrics |= {"entropy": entropy, "effective_sample_size": size, "grad_norm": 0.4}
        counts = {age: round(SAMPLES_IN_A_STEP * of / num_tokens) for age, of in enumerate(tokens) if of}
        result = StepResult(version=version, metrics=metrics, staleness_counts=counts)
        took = seconds - begin - waited
        events += [
            StepFinished(seconds=seconds, result=result, groups=(), step_seconds=took, wait_seconds=waited),
            WeightsLoaded(seconds=seconds, version=version, checksum=""),
        ]
        begin = seconds
    return events

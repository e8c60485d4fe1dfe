"""The rules of health on the demo's first real run: silent at step 8, two findings at step 20, six at the end."""

import pytest
from demo_steps import demo_steps
from health_runs import a_start, findings

FOUND = {
    8: {},
    20: {"equal_groups": "warn", "at_the_bound": "info"},
    45: {
        "equal_groups": "alarm", "no_update": "warn", "variety": "warn", "entropy": "warn", "length": "info",
        "limit": "info",
    },
}  # fmt: skip


@pytest.mark.parametrize("step", FOUND)
def test_the_demo_is_told_what_is_true_of_it(step: int) -> None:
    found = findings([a_start(num_steps=45), *demo_steps(step)])
    assert {rule: finding.level for rule, finding in found.items()} == FOUND[step]


def test_the_sentences_name_what_was_seen() -> None:
    found = findings([a_start(num_steps=45), *demo_steps(45)])
    assert found["equal_groups"].text.startswith("94 % of the groups of steps 36-45 have equal rewards")
    assert found["no_update"].text.startswith("6 of the last 10 steps made no update")
    assert found["limit"].text.startswith("generation is the limit: the trainer waited for rollouts 37 %")

"""Rules of health about learning: each fires on what it is for, and on neither side of its limit too early."""

import math
from collections.abc import Sequence

import msgspec
import pytest
from health_runs import a_start, a_step, an_end, an_eval, findings, grades, healthy_run, steps

from freerun.events.events import AnyEvent
from freerun.events.learning_rules import GRADIENT_STEPS

AT_VERSION = [a_start(), *steps(12)]


def rule_over(metrics: dict[str, float], rule: str, *, number: int = 12, without: Sequence[str] = ()) -> str:
    """Level and text of what a rule finds in steps with these metrics; empty if nothing."""
    found = findings([a_start(), *steps(number, metrics, without=without)]).get(rule)
    return f"{found.level}: {found.text}" if found else ""


@pytest.mark.parametrize(
    ("rule", "below", "above", "level"),
    [
        ("equal_groups", {"equal_group_share": 0.5}, {"equal_group_share": 0.51}, "warn"),
        ("equal_groups", {"equal_group_share": 0.5}, {"equal_group_share": 0.91}, "alarm"),
        ("cut_off", {"cut_off_share": 0.25}, {"cut_off_share": 0.26}, "warn"),
        ("empty", {"empty_share": 0.25}, {"empty_share": 0.26}, "alarm"),
        ("variety", {"distinct_text_share": 0.25}, {"distinct_text_share": 0.24}, "warn"),
        ("effective_sample_size", {"effective_sample_size": 0.5}, {"effective_sample_size": 0.49}, "alarm"),
        ("gradient", {"skipped_updates": 0.0}, {"skipped_updates": 1.0}, "alarm"),
        ("disagreement", {"engine_trainer_kl": 1e-3}, {"engine_trainer_kl": 1.1e-3}, "alarm"),
        (
            "grader",
            {"common_reward_share": 0.95, "accuracy": 0.0},
            {"common_reward_share": 0.96, "accuracy": 0.0},
            "warn",
        ),
    ],
)
def test_a_rule_about_a_share_fires_beyond_its_limit_only(
    rule: str, below: dict[str, float], above: dict[str, float], level: str
) -> None:
    assert rule_over(below, rule) == ""
    assert rule_over(above, rule).startswith(f"{level}: ")
    assert rule_over(above, rule, number=4) == "", "too few steps to judge"
    assert rule in findings([a_start(), *steps(4, above), an_end(4)]), "but not when there will be no more"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("metric", ["equal_group_share", "cut_off_share", "empty_share", "effective_sample_size"])
def test_a_metric_that_is_missing_or_no_number_says_nothing(metric: str, value: float) -> None:
    rule = {"equal_group_share": "equal_groups", "cut_off_share": "cut_off", "empty_share": "empty"}
    assert rule_over({metric: value}, rule.get(metric, metric)) == ""
    assert rule_over({}, rule.get(metric, metric), without=[metric]) == ""


# ---- is there anything to learn from? ------------------------------------------------------------------------


def test_equal_groups_say_why_and_how_much_is_left() -> None:
    easy = rule_over({"equal_group_share": 0.8, "all_right_share": 0.76, "all_wrong_share": 0.0}, "equal_groups")
    assert easy == (
        "warn: 80 % of the groups of steps 3-12 have equal rewards (95 % of them all right): the data is too "
        "easy; only 20 % can teach anything"
    )
    hard = {"equal_group_share": 0.8, "all_right_share": 0.0, "all_wrong_share": 0.6}
    assert "(75 % of them all wrong): the data is too hard" in rule_over(hard, "equal_groups")
    both = {"equal_group_share": 0.8, "all_right_share": 0.4, "all_wrong_share": 0.4}
    assert "all right, 50 % all wrong): the data is too easy or too hard" in rule_over(both, "equal_groups")
    neither = {"equal_group_share": 0.8, "all_right_share": 0.0, "all_wrong_share": 0.0}
    assert "equal rewards; only" in rule_over(neither, "equal_groups")


def test_steps_without_an_update_are_counted_over_the_last_ten() -> None:
    idle: list[AnyEvent] = [a_step(13, without=["grad_norm"])]
    found = findings([*AT_VERSION, *idle])["no_update"]
    assert found.text == "1 of the last 10 steps made no update: every group's rewards were equal"
    assert "train.prompts_per_step" in found.advice
    solved: list[AnyEvent] = [a_step(13, {"accuracy": 1.0}, without=["grad_norm"])]
    assert findings([*AT_VERSION, *solved])["no_update"].advice.startswith("all was right: use harder data")
    assert "no_update" not in findings(AT_VERSION)
    assert "no_update" not in findings([*AT_VERSION, *idle, *steps(10, first=14)])
    diverged: list[AnyEvent] = [a_step(13, {"skipped_updates": 2.0}, without=["grad_norm"])]
    assert findings([*AT_VERSION, *diverged])["no_update"].advice == "lower train.lr"


def test_a_run_that_never_updates_is_told_once_and_not_as_single_steps() -> None:
    idle = steps(5, without=["grad_norm"])
    found = findings([a_start(), *idle])
    assert found["nothing_learned"].level == "alarm"
    assert "no_update" not in found
    assert "nothing_learned" not in findings([a_start(), *idle[:-2]])
    assert "nothing_learned" not in findings([a_start(), *idle, *steps(1, first=6)])
    only = findings([a_start(), *steps(1, without=["grad_norm"]), an_end(1)])["nothing_learned"]
    assert only.text.startswith("nothing was learned: the only step did not change the weights")


@pytest.mark.parametrize(("group_size", "share"), [(4, 0.25), (2, 0.5), (8, 0.2), (0, 0.2)])
def test_little_variety_is_found_in_groups_of_any_size(group_size: int, share: float) -> None:
    events = [a_start(group_size=group_size), *steps(12, {"distinct_text_share": share})]
    assert "nearly the same" in findings(events)["variety"].text
    more = [a_start(group_size=group_size), *steps(12, {"distinct_text_share": share + 0.1})]
    assert "variety" not in findings(more)


def test_a_group_of_one_has_all_the_variety_it_can_have() -> None:
    assert "variety" not in findings([a_start(group_size=1), *steps(12, {"distinct_text_share": 1.0})])


def test_entropy_is_compared_with_the_first_steps() -> None:
    start = [a_start(), *steps(5, {"entropy": 1.0})]
    assert "entropy" not in findings([*start, *steps(15, {"entropy": 0.21}, first=6)])
    low = findings([*start, *steps(15, {"entropy": 0.19}, first=6)])["entropy"]
    assert low.text == "entropy fell from 1.00 to 0.19: little exploration is left"
    assert "entropy" not in findings([*start, *steps(9, {"entropy": 0.1}, first=6)]), "too early to compare"
    assert "entropy" not in findings([*start, *steps(15, {"entropy": 2.0}, first=6)])
    high = findings([*start, *steps(15, {"entropy": 2.01}, first=6)])["entropy"]
    assert high.text == "entropy grew from 1.00 to 2.01: the policy samples ever more at random"
    little = [a_start(), *steps(5, {"entropy": 0.1})]
    assert "entropy" not in findings([*little, *steps(15, {"entropy": 1.0}, first=6)]), "some is wanted"
    one_odd_step = [*steps(14, {"entropy": 0.9}, first=6), *steps(1, {"entropy": 0.1}, first=20)]
    assert "entropy" not in findings([*start, *one_odd_step])


# ---- lengths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "word"), [(40.0, "grew"), (39.0, ""), (10.0, "shrank"), (10.5, "")])
def test_completions_that_double_or_halve_are_mentioned(length: float, word: str) -> None:
    found = findings([a_start(), *steps(5), *steps(10, {"completion_length": length}, first=6)])
    assert ("length" in found) == bool(word)
    if word:
        assert found["length"].text == f"completions {word} from 20.0 to {length:.1f} tokens"
        assert found["length"].level == "info"


# ---- is the step what it should be? ---------------------------------------------------------------------------


def test_a_fall_of_the_effective_sample_size_is_a_warning_before_it_is_an_alarm() -> None:
    fall = [a_step(13, {"effective_sample_size": 0.6, "behaviour_weight_max": 8.25})]
    found = findings([*AT_VERSION, *fall])["effective_sample_size"]
    assert found.level == "warn"
    assert found.text == "the effective sample size fell from 0.97 to 0.60 in 5 steps (largest weight 8.25)"
    slight = [a_step(13, {"effective_sample_size": 0.7})]
    assert "effective_sample_size" not in findings([*AT_VERSION, *slight])
    low = findings([*AT_VERSION, a_step(13, {"effective_sample_size": 0.4}), *steps(2, first=14)])
    assert "of step 13 was 0.40" in low["effective_sample_size"].text
    assert low["effective_sample_size"].evidence == "#/samples?step=13&order=weight"


def test_a_missing_weight_is_left_out_of_the_sentence() -> None:
    low = {"effective_sample_size": 0.4}
    assert "weight" not in rule_over(low, "effective_sample_size", without=["behaviour_weight_max"])


def test_a_gradient_is_compared_with_the_median_before_it() -> None:
    assert "gradient" not in findings([*AT_VERSION, a_step(13, {"grad_norm": 2.0})])
    found = findings([*AT_VERSION, a_step(13, {"grad_norm": 2.8})])["gradient"]
    assert found.text == "the last gradient norm, 2.8, is 7 times its median"
    few = [a_start(), *steps(GRADIENT_STEPS - 1), a_step(GRADIENT_STEPS, {"grad_norm": 9.0})]
    assert "gradient" not in findings(few)
    assert rule_over({"skipped_updates": 1.0}, "gradient").startswith(
        "alarm: 10 updates of steps 3-12 were skipped"
    )


# ---- does held-out follow? ------------------------------------------------------------------------------------


def test_a_fall_of_held_out_accuracy_is_certain_only_outside_its_interval() -> None:
    start = [a_start(), an_eval(0, 0.5), *steps(10)]
    assert "held_out_fell" not in findings([*start, an_eval(10, 0.5)])
    assert findings([*start, an_eval(10, 0.46)])["held_out_fell"].level == "info"
    assert findings([*start, an_eval(10, 0.46), an_end(10)])["held_out_fell"].level == "warn"
    assert findings([*start, an_eval(10, 0.44)])["held_out_fell"].level == "alarm"
    assert "held_out_fell" not in findings([*start, an_eval(10, 0.4), an_eval(20, 0.6)]), "it is back"
    assert "held_out_fell" not in findings([*start, an_eval(10, math.nan)]), "nothing could be graded"
    assert findings([*start, an_eval(10, 0.1, error=math.nan)])["held_out_fell"].level == "info"


def test_training_accuracy_is_compared_with_the_evaluation_of_its_time() -> None:
    start = [a_start(), *steps(12, {"accuracy": 0.7})]
    assert "held_out_gap" not in findings([*start, an_eval(10, 0.55)])
    assert "held_out_gap" not in findings([*start, an_eval(10, 0.5, error=0.2)]), "within the interval"
    found = findings([*start, an_eval(10, 0.5)])["held_out_gap"]
    assert found.text.startswith("training accuracy was 70 % when held-out accuracy was 50 % (version 10)")
    rushed = [a_start(), *steps(12, {"accuracy": 0.3}), an_eval(5, 0.3), *steps(8, {"accuracy": 0.9}, first=13)]
    assert "held_out_gap" not in findings(rushed), "it has learned a lot since its last evaluation"
    assert "held_out_gap" not in findings([*start, an_eval(0, 0.1)])


def test_a_part_of_the_reward_that_rises_while_held_out_falls_is_named() -> None:
    def run(parts: Sequence[float], accuracies: Sequence[float]) -> dict[str, object]:
        events: list[AnyEvent] = [a_start()]
        for number, (part, accuracy) in enumerate(zip(parts, accuracies, strict=True), start=1):
            metrics = {"reward/format": part, "reward/number": 1.0}
            events += [*steps(1, metrics, first=number), an_eval(number, accuracy)]
        return dict(findings(events))

    assert "one_part" in run([0.1, 0.2, 0.3], [0.6, 0.5, 0.4])
    assert "one_part" not in run([0.1, 0.2, 0.2], [0.6, 0.5, 0.4])
    assert "one_part" not in run([0.1, 0.2, 0.3], [0.6, 0.5, 0.5])
    assert "one_part" not in run([0.1, 0.2], [0.6, 0.5])


# ---- graders --------------------------------------------------------------------------------------------------


def test_failed_grades_are_an_alarm_when_they_are_many() -> None:
    assert "grader" not in findings([a_start(), grades(100, num_failed=5)])
    assert "grader" not in findings([a_start(), grades(19, num_failed=19)])
    assert findings([a_start(), grades(100, num_failed=6)])["grader"].text == "6 % of 100 grades failed"


def test_a_slow_grade_is_measured_by_its_limit() -> None:
    assert "grader" not in findings([a_start(), grades(100, slowest_seconds=5.0)])
    slow = findings([a_start(), grades(100, slowest_seconds=5.1)])["grader"]
    assert slow.text == "a grade took 5.1 s; it fails after 10 s"
    unlimited = a_start(grade_limit_seconds=0.0)
    assert "grader" not in findings([unlimited, grades(100, slowest_seconds=99.0)])


def test_a_grader_that_finds_everything_right_is_not_suspected() -> None:
    same = {"common_reward_share": 0.99, "common_reward": -5.0}
    assert rule_over(same | {"accuracy": 0.0}, "grader").startswith("warn: the grader gives -5 to 99 % of")
    assert rule_over(same | {"accuracy": 0.99}, "grader") == ""


def test_who_gives_one_reward_to_all_is_named() -> None:
    same = {"common_reward_share": 0.99, "common_reward": 0.0, "accuracy": 0.0}
    assert rule_over(same | {"num_calls": 3.0}, "grader").startswith(
        "warn: the episode gives 0 to 99 % of the sess"
    )
    live = msgspec.structs.replace(a_start(), is_live=True)
    [finding] = [f for f in findings([live, *steps(10, same)]).values() if f.rule == "grader"]
    assert (finding.text, finding.advice) == (
        "clients give 0 to 99 % of the sessions of steps 1-10",
        "check what your clients send as feedback",
    )


def test_a_healthy_run_is_said_to_be_healthy_after_every_event() -> None:
    events = [*healthy_run(), an_end()]
    for number in range(len(events) + 1):
        assert findings(events[:number]) == {}

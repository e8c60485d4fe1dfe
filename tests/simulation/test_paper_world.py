"""The world of bench/paper.py: what AReaL counts against its slots, and what freerun counts."""

from dataclasses import replace

from bench.paper import SET_A
from bench.paper_world import Setting, run

SETTING = Setting(
    "1.5b", 4, 8, max_staleness=4, prompts_per_step=16, group_size=8, num_concurrent=64, policy="wait"
)  # fmt: skip


def test_whole_groups_leave_slots_empty_until_their_longest_sample_ends() -> None:
    by_sample, _ = run(SETTING, SET_A)
    by_group, _ = run(replace(SETTING, counts_groups=True), SET_A)
    trained = [
        {sum(step.staleness_counts.values()) for step in outcome.steps} for outcome in (by_sample, by_group)
    ]
    assert trained == [{128}, {128}]
    assert by_group.mean_decoding < 0.9 * by_sample.mean_decoding
    assert by_group.tokens_per_second < by_sample.tokens_per_second


def test_freshness_control_lowers_the_staleness_of_a_run_that_its_trainer_limits() -> None:
    limited = replace(SETTING, trainer_gpus=1, num_concurrent=512)
    always, _ = run(limited, SET_A, num_warm=40)
    fresh, _ = run(replace(limited, keep_fresh=True), SET_A, num_warm=40)
    means = [
        sum(staleness * number for staleness, number in outcome.staleness.items()) / (10 * 128)
        for outcome in (always, fresh)
    ]
    assert means[1] < 0.75 * means[0]
    assert fresh.tokens_per_second > 0.95 * always.tokens_per_second

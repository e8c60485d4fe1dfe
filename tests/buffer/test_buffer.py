"""What the buffer decides, one sentence at a time; whole runs are in `test_buffer_runs.py`."""

import pytest
from fake_groups import a_buffer, a_group, a_group_of_sessions, through_a_checkpoint
from msgspec import structs

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.groups import Batch, Ledger
from freerun.config.recipe import StalenessPolicy
from freerun.errors import CheckpointError
from freerun.types import Reward, encode


def run_through(buffer: TrajectoryBuffer, *ordinals: int, version: int) -> None:
    """Start and finish groups at one version."""
    for ordinal in ordinals:
        buffer.start(ordinal, version)
        buffer.add(a_group(ordinal, version))


def ordinals_of(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [group.ordinal for group in batch.groups]


def test_a_batch_is_formed_when_enough_groups_are_ready() -> None:
    buffer = a_buffer(groups=2)
    run_through(buffer, 0, version=0)
    assert buffer.take(0) is None
    run_through(buffer, 1, version=0)
    assert ordinals_of(buffer.take(0)) == [0, 1]


def test_the_oldest_tokens_are_taken_first_then_the_lowest_ordinal() -> None:
    buffer = a_buffer(groups=1, max_staleness=3)
    run_through(buffer, 9, version=0)
    assert ordinals_of(buffer.take(0)) == [9]
    buffer.start(5, 0)
    buffer.start(4, 1)
    buffer.start(3, 1)
    for group in (a_group(5, 0, oldest_version=1), a_group(4, 1), a_group(3, 1)):
        buffer.add(group)
    assert [ordinals_of(buffer.take(version)) for version in (1, 2, 3)] == [[3], [4], [5]]


def test_a_running_group_that_the_next_version_makes_too_old_is_waited_for() -> None:
    buffer = a_buffer(groups=1, max_staleness=1)
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    assert ordinals_of(buffer.take(0)) == [1]  # group 0 may still go into the batch of version 1
    run_through(buffer, 2, version=1)
    assert buffer.take(1) is None
    assert buffer.waiting_for() == "rollout 0 (started at version 0)"
    buffer.add(a_group(0, 0))
    assert ordinals_of(buffer.take(1)) == [0]


def test_two_old_groups_that_share_one_last_batch_are_noticed_a_version_earlier() -> None:
    """The example of the module docstring: at version 2, groups 0 and 1 would both need the only place."""
    buffer = a_buffer(groups=1, max_staleness=2)
    buffer.start(0, 0)
    buffer.start(1, 0)
    run_through(buffer, 2, version=0)
    assert ordinals_of(buffer.take(0)) == [2]
    run_through(buffer, 3, version=1)
    assert buffer.take(1) is None
    assert buffer.waiting_for() == "rollouts 0, 1 (started at version 0)"
    buffer.add(a_group(1, 0))
    assert ordinals_of(buffer.take(1)) == [1]
    assert buffer.take(2) is None
    buffer.add(a_group(0, 0))
    assert [ordinals_of(buffer.take(version)) for version in (2, 3)] == [[0], [3]]


def test_a_failure_ends_the_wait() -> None:
    buffer = a_buffer(groups=1, max_staleness=1)
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    run_through(buffer, 2, version=1)
    assert buffer.take(1) is None
    buffer.fail(0)
    assert ordinals_of(buffer.take(1)) == [2]
    assert buffer.counts.failed == 1


def test_a_group_of_equal_rewards_is_filtered_if_asked() -> None:
    buffer = a_buffer(filtering=True)
    buffer.start(0, 0)
    assert buffer.add(a_group(0, 0, rewards=(5.0, 5.0))) == "filtered"
    buffer.start(1, 0)
    assert buffer.add(a_group(1, 0, rewards=(5.0, -5.0))) == "buffered"
    assert (buffer.counts.filtered, buffer.counts.ready) == (1, 1)


def test_a_group_of_equal_rewards_is_trained_on_by_default() -> None:
    buffer = a_buffer()
    buffer.start(0, 0)
    assert buffer.add(a_group(0, 0, rewards=(5.0, 5.0))) == "buffered"


@pytest.mark.parametrize("policy", ["drop", "requeue"])
def test_ready_groups_that_a_batch_makes_too_old_are_discarded_with_it(policy: StalenessPolicy) -> None:
    buffer = a_buffer(groups=1, max_staleness=1, policy=policy)
    for ordinal in (0, 1):
        buffer.start(ordinal, 0)
    run_through(buffer, 2, version=0)
    batch = buffer.take(0)
    assert batch is not None
    assert batch.discarded == ()
    for ordinal in (0, 1):
        assert buffer.add(a_group(ordinal, 0)) == "buffered"
    batch = buffer.take(1)
    assert ordinals_of(batch) == [0]
    assert batch is not None
    assert [group.ordinal for group in batch.discarded] == [1]
    assert buffer.counts.ready == 0


def test_a_group_that_finishes_too_old_is_dropped_for_good() -> None:
    buffer = a_buffer(policy="drop")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0)) == "dropped"
    assert buffer.to_restart == ()
    with pytest.raises(ValueError, match="group 0 was started before"):
        buffer.start(0, 1)


def test_a_group_that_finishes_too_old_is_requeued_and_may_start_again() -> None:
    buffer = a_buffer(policy="requeue")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0)) == "requeued"
    assert list(buffer.to_restart) == [0]
    run_through(buffer, 0, version=1)
    assert list(buffer.to_restart) == []
    assert ordinals_of(buffer.take(1)) == [0]
    assert (buffer.counts.requeued, buffer.counts.trained) == (1, 2)


def test_a_group_that_began_late_is_as_old_as_its_tokens_not_as_its_start() -> None:
    buffer = a_buffer(policy="drop")
    buffer.start(0, 0)
    run_through(buffer, 1, version=0)
    buffer.take(0)
    assert buffer.add(a_group(0, 0, oldest_version=1)) == "buffered"


def test_an_ordinal_starts_once() -> None:
    buffer = a_buffer(groups=1, max_staleness=3)
    run_through(buffer, 0, version=0)
    buffer.take(0)
    run_through(buffer, 1, version=0)
    buffer.start(2, 0)
    for ordinal in (0, 1, 2):  # trained, ready, running
        with pytest.raises(ValueError, match=f"group {ordinal} was started before"):
            buffer.start(ordinal, 0)


def test_a_group_finishes_once_and_only_if_it_was_started() -> None:
    buffer = a_buffer()
    with pytest.raises(ValueError, match="group 7 is not running"):
        buffer.add(a_group(7, 0))
    run_through(buffer, 0, version=0)
    with pytest.raises(ValueError, match="group 0 is not running"):
        buffer.add(a_group(0, 0))
    with pytest.raises(ValueError, match="group 0 is not running"):
        buffer.fail(0)


def test_tokens_older_than_the_start_are_a_wrong_label() -> None:
    buffer = a_buffer(max_staleness=2)
    buffer.start(0, 1)
    with pytest.raises(ValueError, match="a version label is wrong"):
        buffer.add(a_group(0, 1, oldest_version=0))


def test_tokens_from_the_future_are_never_trained_on() -> None:
    buffer = a_buffer()
    buffer.start(0, 0)
    buffer.add(a_group(0, 0, oldest_version=1))
    with pytest.raises(RuntimeError, match="group 0 has tokens of version 1; the batch for version 0"):
        buffer.take(0)


def test_a_start_that_the_gate_would_not_admit_is_refused() -> None:
    buffer = a_buffer(groups=2, max_staleness=0)
    buffer.start(0, 0)
    buffer.start(1, 0)
    with pytest.raises(ValueError, match="no room for a group started at version 0"):
        buffer.start(2, 0)


def test_each_version_takes_one_batch() -> None:
    buffer = a_buffer(max_staleness=1)
    run_through(buffer, 0, 1, version=0)
    buffer.take(0)
    with pytest.raises(ValueError, match="asked for the batch of version 0, the next is that of 1"):
        buffer.take(0)


def test_it_says_how_many_groups_are_missing_and_which_rollout_is_oldest() -> None:
    buffer = a_buffer(groups=3)
    run_through(buffer, 0, version=0)
    assert buffer.waiting_for() == "1 of 3 groups, no rollout is running"
    buffer.start(2, 0)
    buffer.start(1, 0)
    assert buffer.waiting_for() == "1 of 3 groups, oldest rollout 1 (started at version 0)"


def test_it_says_so_when_it_waits_for_nothing() -> None:
    buffer = a_buffer()
    run_through(buffer, 0, version=0)
    assert buffer.waiting_for() == "nothing: a batch is ready"


def test_it_names_a_few_of_many_rollouts() -> None:
    buffer = a_buffer(groups=9, max_staleness=1)
    for ordinal in range(9):
        buffer.start(ordinal, 0)
    run_through(buffer, *range(9, 18), version=0)
    buffer.take(0)
    run_through(buffer, *range(18, 27), version=1)
    assert buffer.waiting_for() == "rollouts 0, 1, 2, 3, 4, 5 and 3 more (started at version 0)"


def test_the_ledger_stays_small_however_long_the_run() -> None:
    ledger = Ledger()
    for ordinal in (*range(1, 1000), 1001):
        ledger.add(ordinal)
    ledger.add(0)
    assert (ledger.state().mark, ledger.state().above) == (1000, (1001,))
    assert 999 in ledger
    assert 1000 not in ledger
    with pytest.raises(ValueError, match="group 5 is done already"):
        ledger.add(5)


def test_a_restored_buffer_forms_the_same_batches_and_restarts_what_ran() -> None:
    saved = a_buffer(groups=2, max_staleness=2)
    run_through(saved, 0, 1, 3, 5, version=0)
    saved.start(4, 0)
    saved.take(0)
    run_through(saved, 7, version=1)

    restored = a_buffer(groups=2, max_staleness=2)
    restored.restore(through_a_checkpoint(saved))
    assert restored.to_restart == (4,)
    assert restored.counts.running == 0
    assert restored.counts.ready == saved.counts.ready == 3

    saved.fail(4)
    restored.start(4, 1)
    restored.fail(4)
    assert restored.counts == saved.counts
    assert ordinals_of(restored.take(1)) == ordinals_of(saved.take(1)) == [3, 5]


def test_a_restored_buffer_still_knows_what_is_done() -> None:
    saved = a_buffer(groups=1, max_staleness=3)
    run_through(saved, 0, 2, version=0)
    saved.take(0)
    saved.start(5, 0)
    saved.fail(5)
    restored = a_buffer(groups=1, max_staleness=3)
    restored.restore(through_a_checkpoint(saved))
    for ordinal in (0, 2, 5):  # trained, ready, failed
        with pytest.raises(ValueError, match=f"group {ordinal} was started before"):
            restored.start(ordinal, 1)


def test_a_requeued_group_that_was_not_started_yet_survives_a_checkpoint() -> None:
    saved = a_buffer(policy="requeue")
    saved.start(0, 0)
    run_through(saved, 1, version=0)
    saved.take(0)
    saved.add(a_group(0, 0))
    restored = a_buffer(policy="requeue")
    restored.restore(through_a_checkpoint(saved))
    assert restored.to_restart == (0,)


def test_waiting_refuses_a_checkpoint_whose_groups_a_lower_bound_makes_too_old() -> None:
    saved = a_buffer(max_staleness=2)
    run_through(saved, 0, 1, 2, version=0)
    saved.take(0)
    with pytest.raises(CheckpointError, match=r"its 2 buffered groups .* buffer\.max_staleness = 0"):
        a_buffer(max_staleness=0).restore(through_a_checkpoint(saved))


def test_dropping_discards_from_a_checkpoint_what_a_lower_bound_makes_too_old() -> None:
    saved = a_buffer(max_staleness=2)
    run_through(saved, 0, 1, 2, version=0)
    saved.take(0)
    restored = a_buffer(max_staleness=0, policy="drop")
    restored.restore(through_a_checkpoint(saved))
    assert (restored.counts.ready, restored.counts.dropped) == (0, 2)


def test_sessions_in_several_sequences_are_restored_as_they_were() -> None:
    saved = a_buffer(groups=1, max_staleness=2)
    saved.start(3, 0)
    assert saved.add(a_group_of_sessions(3, 0)) == "buffered"
    restored = a_buffer(groups=1, max_staleness=2)
    restored.restore(through_a_checkpoint(saved))
    batch, expected = restored.take(0), saved.take(0)
    assert batch is not None
    assert expected is not None
    assert encode(batch) == encode(expected)
    [group] = batch.groups
    assert (group.num_samples, len(group.trajectories), group.oldest_version) == (2, 4, 0)


def test_samples_are_compared_and_not_their_sequences() -> None:
    buffer = a_buffer(groups=1, filtering=True)
    for ordinal, rewards in enumerate([(1.0, 1.0), (1.0, 0.0)]):
        buffer.start(ordinal, 0)
        outcome = buffer.add(a_group_of_sessions(ordinal, 0, rewards))
        assert outcome == ("filtered" if rewards[0] == rewards[1] else "buffered")


def test_samples_that_earned_the_same_in_other_turns_are_not_equal() -> None:
    group = a_group(0, 0, rewards=(1.0, 1.0))
    turns = [Reward(1.0, True, turns=turns) for turns in ((1.0, 0.0), (0.0, 1.0))]
    rated = [structs.replace(t, reward=reward) for t, reward in zip(group.trajectories, turns, strict=True)]
    buffer = a_buffer(groups=1, filtering=True)
    buffer.start(0, 0)
    assert buffer.add(structs.replace(group, trajectories=tuple(rated))) == "buffered"

"""Which recorded samples are read: by step, group, kind, text and order, from stores of any size."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_groups import a_group_of_sessions
from recorded_events import a_loss, a_start, an_end, an_eval_with_prompts, make_group, make_step, write

from freerun.errors import FreerunError
from freerun.events.events import GroupFinished, StepFinished
from freerun.events.reader import RunReader
from freerun.events.selection import Selection
from freerun.types import Group, Reward, TrainedTrajectory


def changed(group: Group, **changes: Any) -> Group:
    """The group with other completions."""
    trajectories = tuple(
        msgspec.structs.replace(t, completion=msgspec.structs.replace(t.completion, **changes))
        for t in group.trajectories
    )
    return msgspec.structs.replace(group, trajectories=trajectories)


def weighed(version: int, groups: tuple[Group, ...], *log_weights: float, **metrics: float) -> StepFinished:
    """A step that says what it made of its trajectories."""
    step = make_step(version, groups, **metrics)
    trained = tuple(
        TrainedTrajectory(log_weights=np.array([0.0, w], np.float16), advantage=0.5, clipped=np.arange(int(w > 1)))
        for w in log_weights
    )
    return msgspec.structs.replace(step, result=msgspec.structs.replace(step.result, trajectories=trained))


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    """Two steps of two groups of two samples; rewards 5 and 4, the second sample wrong."""
    cut = changed(make_group(12), finish_reason="length", text="100% of_it")
    empty = changed(make_group(13), text=" \n\t")
    equal = make_group(11)
    equal = msgspec.structs.replace(
        equal, trajectories=tuple(msgspec.structs.replace(t, reward=Reward(1.0, True)) for t in equal.trajectories)
    )
    write(
        tmp_path,
        a_start(),
        weighed(1, (make_group(10), equal), 0.5, 2.0, -1.0, -2.0, behaviour_weight_max=7.4),
        weighed(2, (cut, empty), 0.1, 3.0, 0.2, 0.3, behaviour_weight_max=20.1),
        a_loss(20, "filtered"),
        a_loss(21, "dropped"),
        GroupFinished(
            seconds=4.0, ordinal=22, outcome="failed", reason="no", prompt=make_group(22).trajectories[0].prompt
        ),
        an_eval_with_prompts(2),
        an_end(),
    )
    return RunReader(tmp_path)


def keys(samples: list[Any]) -> list[tuple[int, int]]:
    return [(parts[0].ordinal, parts[0].sample) for parts in samples]


def test_a_step_is_given_as_it_was_trained_and_a_run_with_the_newest_first(reader: RunReader) -> None:
    assert keys(reader.samples(Selection(step=1))) == [(10, 0), (10, 1), (11, 0), (11, 1)]
    assert keys(reader.samples(Selection(limit=3))) == [(13, 1), (13, 0), (12, 1)]
    assert keys(reader.samples(Selection(ordinal=12))) == [(12, 0), (12, 1)]
    assert keys(reader.samples(Selection(step=2, is_reversed=True, limit=1))) == [(13, 1)]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (("wrong",), [(10, 1), (12, 1), (13, 1)]),
        (("right", "cut-off"), [(12, 0)]),
        (("empty",), [(13, 0), (13, 1)]),
        (("clipped",), [(10, 1), (12, 1)]),
        (("equal",), [(11, 0), (11, 1)]),
        (("stale",), [(12, 0), (12, 1), (13, 0), (13, 1)]),
    ],
)
def test_kinds_of_samples_are_found_over_the_run(reader: RunReader, where: Any, found: list[Any]) -> None:
    assert sorted(keys(reader.samples(Selection(where=where)))) == found
    assert reader.num_samples(Selection(where=where, limit=1)) == len(found)


def test_what_was_lost_is_found_by_its_outcome(reader: RunReader) -> None:
    assert keys(reader.lost_samples(Selection(where=("lost",)))) == [(22, -1), (21, 0), (21, 1), (20, 0), (20, 1)]
    assert keys(reader.lost_samples(Selection(where=("dropped", "wrong")))) == [(21, 1)]
    [[failed]] = reader.lost_samples(Selection(where=("failed",)))
    assert (failed.reason, failed.sample) == ("no", -1)
    assert reader.num_samples(Selection(where=("filtered",))) == 2


def test_a_text_is_found_with_its_signs_as_they_are(reader: RunReader) -> None:
    assert keys(reader.samples(Selection(text="0% OF_i"))) == [(12, 1), (12, 0)]
    assert reader.samples(Selection(text="0%of")) == []
    assert len(reader.samples(Selection(text="7*8=", step=1))) == 4


def test_orders_are_those_of_the_whole_run(reader: RunReader) -> None:
    assert keys(reader.samples(Selection(order="weight", limit=2))) == [(12, 1), (10, 1)]
    assert keys(reader.samples(Selection(order="weight", limit=1, step=1))) == [(10, 1)]
    assert keys(reader.samples(Selection(order="weight", where=("right",), limit=1))) == [(10, 0)]
    assert keys(reader.samples(Selection(order="reward", is_reversed=True, limit=1))) == [(11, 0)]
    assert reader.samples(Selection(order="age", limit=1))[0][0].staleness == 1
    assert len(reader.samples(Selection(order="length"))) == 8


def test_held_out_samples_are_chosen_in_the_same_way(reader: RunReader) -> None:
    assert keys(reader.eval_samples(2, Selection())) == [(-1, 0), (-1, 1)]
    assert keys(reader.eval_samples(2, Selection(where=("wrong",)))) == [(-1, 1)]
    assert reader.num_samples(Selection(), eval_version=2) == 2
    assert reader.eval_samples(1, Selection()) == []


def test_a_question_that_means_nothing_is_refused_with_the_reason(reader: RunReader) -> None:
    for ask in (
        lambda: reader.eval_samples(2, Selection(where=("stale",))),
        lambda: reader.eval_samples(2, Selection(order="age")),
        lambda: reader.lost_samples(Selection(where=("lost",), order="weight")),
        lambda: reader.lost_samples(Selection(where=("lost",), step=1)),
    ):
        with pytest.raises(FreerunError, match="not trained on"):
            ask()


def test_a_sample_of_several_sequences_counts_once_and_is_given_whole(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(3, (a_group_of_sessions(7, 0), a_group_of_sessions(8, 0))), an_end())
    with RunReader(tmp_path) as reader:
        samples = reader.samples(Selection(step=3, limit=3))
        assert keys(samples) == [(7, 0), (7, 1), (8, 0)]
        assert all([row.part for row in parts] == [0, 1] for parts in samples)
        assert reader.num_samples(Selection(step=3)) == 4


def test_steps_are_found_by_their_number(reader: RunReader) -> None:
    step = reader.step(2)
    assert step is not None
    assert step.version == 2
    assert reader.step(3) is None
    assert reader.step_range() == (1, 2)


def test_a_store_without_steps_has_no_range(tmp_path: Path) -> None:
    write(tmp_path, a_start())
    with RunReader(tmp_path) as reader:
        assert reader.step_range() is None
        assert reader.samples(Selection()) == []

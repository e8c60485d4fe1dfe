"""What an evaluation counts: samples of a prompt, however many sequences each became."""

import numpy as np
from fake_groups import a_group, a_group_of_sessions

from freerun.evaluation.evaluation import Attempt, Evaluation
from freerun.types import Group


def evaluation_of(*groups: Group) -> Evaluation:
    return Evaluation(tuple(Attempt(group.trajectories[0].prompt, group.trajectories) for group in groups))


def test_a_session_counts_once_with_its_sampled_tokens() -> None:
    rewards = [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0)]
    sessions = evaluation_of(*(a_group_of_sessions(i, 0, rewards=r) for i, r in enumerate(rewards)))
    completions = evaluation_of(*(a_group(i, 0, rewards=r) for i, r in enumerate(rewards)))
    assert sessions.pass_at(1) == completions.pass_at(1)
    assert sessions.pass_at(2) == completions.pass_at(2)
    assert [(p.num_samples, p.num_correct, p.mean_length) for p in sessions.prompts()] == [(3, 1, 3), (3, 2, 3)]
    event = sessions.as_event(seconds=0.0, version=0, num_samples=3)
    assert (event.mean_length, event.accuracy) == (3.0, 0.5)


def test_given_tokens_have_no_version() -> None:
    assert evaluation_of(a_group_of_sessions(0, 0)).versions == {0, 1, 2}
    assert np.isnan(Evaluation(()).as_event(seconds=0.0, version=0, num_samples=1).mean_length)

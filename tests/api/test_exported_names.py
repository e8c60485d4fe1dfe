"""What a program writes with the names of the library: episodes, and reading what a run recorded."""

import asyncio
from pathlib import Path

import pytest
from episode_outcomes import reward_of
from played_sessions import ScriptedSession, lines, play
from recorded_events import a_start, an_end, make_group, make_step, write

import freerun


def test_an_episode_is_written_with_task_policy_and_what_a_session_ends_with() -> None:
    seen: list[freerun.Task | freerun.Policy] = []

    async def episode(task: freerun.Task, policy: freerun.Policy) -> float:
        seen.extend((task, policy))
        try:
            while True:
                await policy.chat().say(task.text)
        except freerun.Truncated:
            return 0.5

    reward = reward_of(asyncio.run(play(episode, session=ScriptedSession(lines("a"), max_turns=2))))
    assert reward == freerun.Reward(0.5, True)
    [task, policy] = seen
    assert isinstance(task, freerun.Task)
    assert isinstance(policy, freerun.Policy)


def test_a_recorded_step_is_read_by_a_selection(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1, (make_group(10),)), an_end())
    with freerun.RunReader(tmp_path) as reader:
        wrong = freerun.Selection(step=1, where=("wrong",))
        assert [(row.ordinal, row.sample) for [row] in reader.samples(wrong)] == [(10, 1)]
    with pytest.raises(freerun.FreerunError):
        freerun.RunReader(tmp_path / "no run")

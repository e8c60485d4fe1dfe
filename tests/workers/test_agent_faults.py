"""Episodes that hang, crash, fork and exit: real processes, real kills, and no session is lost."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from agent_pools import ScriptedPolicy, agent_pids, enter_users_directory, make_job, play, with_pool
from process_table import children_running, is_running

from freerun.rollout.sessions import SessionFailedError
from freerun.types import Reward
from freerun.workers.agent_pool import AgentPool

SHORT = 1.0
"""Of a session that hangs, in seconds."""


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_users_directory(tmp_path, monkeypatch)


def worker_pids() -> list[int]:
    """The workers themselves, without their guards."""
    return [child.pid for guard in agent_pids() for child in children_running("", guard)]


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.01)


def test_an_episode_out_of_time_is_scored_and_its_process_stays() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        played = await asyncio.gather(
            play(pool, policy, "sleep", number=1), play(pool, policy, "score when time is over", number=2)
        )
        assert [one.reward.value for one in played] == [0.0, 0.25]
        assert all(one.is_truncated and one.sequences for one in played)
        with pytest.raises(SessionFailedError, match="without a completion"):
            await play(pool, policy, "sleep without a call")

    assert with_pool(act, session_seconds=SHORT) == []


def test_the_time_of_the_policy_does_not_count() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        policy.seconds = SHORT
        played = await play(pool, policy, "talk")
        assert played.reward.value == 3.0
        assert not played.is_truncated

    assert with_pool(act, session_seconds=2 * SHORT) == []


@pytest.mark.slow
def test_an_episode_that_holds_the_event_loop_is_killed_and_scored_and_the_others_begin_again() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        waiting = asyncio.create_task(play(pool, policy, "wait for file", number=1))
        await until(Path("begun").exists)
        blocked = await play(pool, policy, "block", number=2)
        assert blocked.reward == Reward(0.0, False)
        assert blocked.is_truncated
        [sequence] = blocked.sequences
        assert policy.tokenizer.decode(sequence.prompt_token_ids) == "^a?"
        assert policy.tokenizer.decode(sequence.completion.token_ids) == "yes$"
        Path("go").touch()
        assert (await waiting).reward.value == 1.0
        assert Path("begun").read_text() == "xx", "the innocent session began again"

    [death] = with_pool(act, session_seconds=SHORT)
    assert "a session of row 7 hangs beyond rollout.session_seconds = 1" in death


@pytest.mark.slow
def test_a_session_that_hangs_before_its_first_call_has_nothing_to_score() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        with pytest.raises(SessionFailedError, match=r"hangs beyond rollout\.session_seconds"):
            await play(pool, policy, "block without a call")
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    assert len(with_pool(act, session_seconds=SHORT)) == 1


@pytest.mark.parametrize("how", ["die once", "kill"])
def test_sessions_of_a_process_that_died_begin_again_with_the_same_calls(how: str) -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        waiting = asyncio.create_task(play(pool, policy, "wait for file", number=1))
        await until(Path("begun").exists)
        if how == "kill":
            os.kill(worker_pids()[0], signal.SIGKILL)
        else:
            assert (await play(pool, policy, "die once", number=2)).reward.value == 1.0
        await until(lambda: Path("begun").read_text() == "xx")
        Path("go").touch()
        assert (await waiting).reward.value == 1.0
        asked = [(text, request.call) for text, request in policy.asked]
        assert asked.count(("^a?", 0)) == (2 if how == "kill" else 4)

    [death] = with_pool(act)
    assert "SIGKILL" in death


@pytest.mark.parametrize("how", [pytest.param("os._exit", marks=pytest.mark.slow), "segfault"])
def test_a_session_whose_process_dies_again_and_again_fails(how: str) -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        with pytest.raises(SessionFailedError, match="its agent worker died 3 times"):
            await play(pool, policy, how)
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    assert len(with_pool(act)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "busy in C"])
def test_a_process_that_is_stopped_or_never_gives_way_is_noticed_by_its_silence(how: str) -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        with pytest.raises(SessionFailedError, match="its agent worker died 3 times"):
            await play(pool, policy, how)
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    deaths = with_pool(act, silence_seconds=3.0)
    assert len(deaths) == 3
    assert all("it was silent for 3 s" in death for death in deaths)


def test_a_fork_that_comes_back_and_an_exit_in_a_task_disturb_nobody() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        assert (await play(pool, policy, "fork that comes back", number=1)).reward.value == 1.0
        assert (await play(pool, policy, "exit in a task", number=2)).reward.value == 1.0
        assert "^never asked" not in [text for text, _ in policy.asked]

    assert with_pool(act) == []


@pytest.mark.slow
def test_a_process_full_of_hanging_tools_is_replaced_when_its_sessions_have_ended() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        [pid] = worker_pids()
        played = await asyncio.gather(*(play(pool, policy, "leave threads", number=n) for n in range(2)))
        assert [one.reward.value for one in played] == [1.0, 1.0]
        await until(lambda: not is_running(pid))
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    [death] = with_pool(act, tool_seconds=0.2)
    assert "too much of its user code hangs" in death


@pytest.mark.slow
def test_a_module_that_changed_so_that_it_cannot_be_imported_ends_the_run_with_the_reason() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        Path("my_agent.py").write_text("raise ValueError('half an edit')")
        session = asyncio.create_task(play(pool, policy, "talk"))
        lost = asyncio.create_task(pool.wait_for_loss())
        os.kill(worker_pids()[0], signal.SIGKILL)
        await asyncio.wait({lost})
        assert "agent-0 could not be replaced" in str(lost.exception())
        assert "half an edit" in str(lost.exception())
        session.cancel()

    with_pool(act)


def test_an_aborted_session_leaves_its_seat_at_once() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        job = make_job(1, "sleep")
        session = asyncio.create_task(pool.run(job, sample=policy.sample, grade=policy.grade))
        await until(lambda: policy.asked)
        session.cancel()
        assert (await play(pool, policy, "talk", number=2)).reward.value == 3.0

    with_pool(act, sessions_per_worker=1, session_seconds=1000.0)

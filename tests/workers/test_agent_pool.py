"""Sessions through real agent workers: what is asked, what comes back, who waits, and what is refused."""

import asyncio
import random
import sys
from pathlib import Path

import pytest
from agent_pools import ScriptedPolicy, agent_pids, enter_users_directory, make_job, make_pool, play, with_pool
from child_processes import assert_ends

from freerun.chat.session import SampleRequest
from freerun.config.rollout import GatewayConfig, RolloutConfig
from freerun.errors import ConfigError, RolloutError
from freerun.rollout.sessions import PlayedSession, SessionFailedError
from freerun.types import Completion, Reward, Sampling
from freerun.workers.agent_endpoint import AgentEndpoint
from freerun.workers.agent_messages import StartAgents
from freerun.workers.agent_pool import AgentPool


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_users_directory(tmp_path, monkeypatch)


def test_a_session_of_three_turns_is_one_sequence_of_sampled_and_given_tokens() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        played = await play(pool, policy, "talk")
        assert played.reward == Reward(3.0, True)
        assert not played.is_truncated
        [sequence] = played.sequences
        decode = policy.tokenizer.decode
        assert decode(sequence.prompt_token_ids) == "^a?"
        assert decode(sequence.completion.token_ids) == "yes$b?yes$c?yes$"
        spans = [(span.version, span.num_tokens, span.call) for span in sequence.completion.spans]
        assert [span for span in spans if span[0] is not None] == [(0, 4, 0), (0, 4, 1), (0, 4, 2)]
        assert sequence.completion.num_sampled == 12
        assert [text for text, _ in policy.asked] == ["^a?", "^a?yes$b?", "^a?yes$b?yes$c?"]
        assert [request.call for _, request in policy.asked] == [0, 1, 2]

    assert with_pool(act) == []


def test_a_session_that_branches_becomes_several_sequences() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        played = await play(pool, policy, "overlap")
        assert played.reward.value == 3.0
        assert len(played.sequences) == 3
        assert sorted(span.call for s in played.sequences for span in s.completion.spans) == [0, 1, 2]

    with_pool(act)


def test_an_episode_knows_its_row_and_settings_and_all_of_a_group_draw_the_same_numbers() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        runs = (
            pool.run(make_job(number, "tell", sample=number), sample=policy.sample, grade=policy.grade)
            for number in range(3)
        )
        values = [played.reward.value for played in await asyncio.gather(*runs)]
        first = random.Random("3/7").random()
        assert values == pytest.approx([first, first + 1, first + 2])

    with_pool(act)


def test_a_grade_comes_from_the_runs_graders_with_its_parts() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        text = (await play(pool, policy, "grade")).reward
        assert text.is_correct
        assert text.parts == {"length": 2 * text.value}

    with_pool(act)


def test_a_session_at_the_limit_of_its_turns_or_tokens_is_scored() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        played = await play(pool, policy, "talk without end")
        assert played.is_truncated
        assert played.reward.value == 4.0

    with_pool(act, max_turns=4)
    with_pool(act, max_session_tokens=42)


def test_sessions_run_side_by_side_and_those_beyond_the_seats_wait() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        waiting = [asyncio.create_task(play(pool, policy, "wait for file", number=n)) for n in range(3)]
        while len(policy.asked) < 2:
            await asyncio.sleep(0.01)
        evaluated = await pool.run(
            make_job(9, "talk", is_evaluation=True), sample=policy.sample, grade=policy.grade
        )
        assert evaluated.reward.value == 3.0, "an evaluation has seats of its own"
        assert len(policy.asked) == 2 + 3, "the third session waits for a seat"
        Path("go").touch()
        assert [played.reward.value for played in await asyncio.gather(*waiting)] == [1.0] * 3

    with_pool(act, sessions_per_worker=2)


def test_two_workers_share_the_sessions() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        waiting = [asyncio.create_task(play(pool, policy, "wait for file", number=n)) for n in range(4)]
        while len(policy.asked) < 4:
            await asyncio.sleep(0.01)
        assert {doing.what for doing in pool.activities().values()} == {"2 sessions"}
        assert list(pool.activities()) == ["agent-0", "agent-1"]
        Path("go").touch()
        await asyncio.gather(*waiting)

    with_pool(act, num_workers=2)


def test_a_cancelled_session_is_aborted_in_the_worker_and_in_the_engine() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        policy.seconds = 1000.0
        session = asyncio.create_task(play(pool, policy, "talk"))
        while not policy.asked:
            await asyncio.sleep(0.01)
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        await asyncio.sleep(0)
        assert policy.num_aborted == 1
        policy.seconds = 0.0
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    assert with_pool(act) == []


def test_what_an_engine_raises_is_what_the_caller_of_the_session_gets() -> None:
    async def refuse(request: SampleRequest) -> tuple[Completion, ...]:
        raise RolloutError("version 4 is gone")

    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        with pytest.raises(RolloutError, match="version 4 is gone"):
            await pool.run(make_job(0, "talk"), sample=refuse, grade=policy.grade)
        assert (await play(pool, policy, "talk", number=1)).reward.value == 3.0

    assert with_pool(act) == []


def test_an_episode_that_raises_or_returns_nonsense_fails_and_keeps_its_process() -> None:
    reasons = {
        "raise": "KeyError: 'missing'",
        "none": "returned None of type NoneType",
        "text": "returned '1' of type str",
        "no call": "ended without a completion",
        "sys.exit": "SystemExit: 3",
        "unheard of": "KeyError: 'unheard of'",
    }

    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        for text, reason in reasons.items():
            with pytest.raises(SessionFailedError, match=reason):
                await play(pool, policy, text)
        assert (await play(pool, policy, "talk")).reward.value == 3.0

    assert with_pool(act) == []


def test_an_agent_asks_over_http_and_is_recorded_in_its_session() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        played = await asyncio.gather(*(play(pool, policy, "ask over http", number=n) for n in range(3)))
        assert [one.reward.value for one in played] == [1.0] * 3
        for one in played:
            [sequence] = one.sequences
            assert policy.tokenizer.decode(sequence.prompt_token_ids) == "^a?"
            assert policy.tokenizer.decode(sequence.completion.token_ids) == "yes$"

    assert with_pool(act) == []


def test_in_a_synchronous_run_all_sessions_take_their_turns_together() -> None:
    async def act(pool: AgentPool, policy: ScriptedPolicy) -> None:
        turns: list[list[tuple[int, int]]] = [[]]

        def noting(number: int) -> object:
            async def sample(request: SampleRequest) -> tuple[Completion, ...]:
                turns[-1].append((number, request.call))
                if len(turns[-1]) == len(numbers):
                    turns.append([])
                return await policy.sample(request)

            return sample

        numbers = [4, 1, 3]
        runs = [pool.run(make_job(n, "talk"), sample=noting(n), grade=policy.grade) for n in numbers]  # type: ignore[arg-type]
        played: list[PlayedSession] = await asyncio.gather(*runs)
        assert [one.reward.value for one in played] == [3.0] * 3
        assert turns == [[(number, call) for number in sorted(numbers)] for call in range(3)] + [[]]

    with_pool(act, is_synchronous=True, num_workers=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episode": "my_agent:no_such"}, 'my_agent.py has no function "no_such"'),
        ({"episode": "no_such_module:episode"}, "importing no_such_module failed"),
        ({"episode": "my_agent:not_async"}, "is not async"),
        ({"episode": "", "tools": ("my_agent:without_annotations",)}, "without_annotations"),
        ({"episode": "", "command": "no-such-program --now"}, "there is no program 'no-such-program'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_first_session(
    settings: dict[str, object], message: str
) -> None:
    async def main() -> None:
        pool = make_pool(**settings)  # type: ignore[arg-type]
        pids: list[int] = []
        with pytest.raises(ConfigError, match=message):
            await pool.start()
        for pid in pids + agent_pids():
            assert_ends(pid)

    asyncio.run(main())


def test_an_address_for_other_machines_needs_a_key_and_a_gateway_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = StartAgents(
        rollout=RolloutConfig(command="true"),
        gateway=GatewayConfig(address="0.0.0.0:0"),
        sampling=Sampling(max_completion_tokens=20),
        model_directory="model",
        model_name="tiny",
        uses_chat_template=False,
        system_prompt="",
        seed=3,
    )
    with pytest.raises(ConfigError, match="needs a key"):
        AgentEndpoint(start).open()
    monkeypatch.setitem(sys.modules, "freerun.gateway.server", None)
    with pytest.raises(ConfigError, match=r"need a web server .*; pip install 'freerun\[agents\]'"):
        AgentEndpoint(start).open()

"""The policy plays environments of OpenEnv's servers: their rewards are its rewards, their faults are not its."""

import asyncio

import pytest
from game_server import GameServer
from played_sessions import ScriptedSession, lines, play, said

from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.rollout.loading import open_episode
from freerun.types import Reward

JSON_GUESS = {"properties": {"metadata": {}, "number": {"type": "string"}, "is_sure": {"type": "boolean"}}}


def play_with(
    server: GameServer, *sessions: ScriptedSession, settings: tuple[str, ...] = ()
) -> list[EpisodeDone | EpisodeFailed]:
    """The sessions of one group."""

    async def run() -> list[EpisodeDone | EpisodeFailed]:
        async with server.running() as url:
            config = RolloutConfig(episode=f"openenv:{url}", settings=settings)
            async with open_episode(config) as episode:
                played = (play(episode, session=session, text="A game.") for session in sessions)
                return await asyncio.gather(*played)

    return asyncio.run(run())


def reason_of(outcome: EpisodeDone | EpisodeFailed) -> str:
    assert isinstance(outcome, EpisodeFailed)
    return outcome.reason


def test_the_policy_plays_and_the_rewards_of_the_environment_are_those_of_its_turns() -> None:
    session = ScriptedSession(lines("3", "4", "5"))
    [outcome] = play_with(GameServer(), session)
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(0.5, True, turns=(-0.25, -0.25, 1.0))
    assert said(session.calls[1].messages) == ["user: A game.\n\nGuess.", "assistant: 3", "user: higher"]


def test_all_sessions_of_a_group_play_the_same_game_with_the_arguments_of_the_recipe() -> None:
    server = GameServer()
    play_with(server, *(ScriptedSession(lines("5")) for _ in range(2)), settings=("level=3",))
    first, second = [asked["data"] for asked in server.asked if asked["type"] == "reset"]
    assert first == second
    assert (first.pop("level"), list(first)) == (3, ["seed"])
    assert server.num_open == 0


def test_actions_of_several_fields_are_written_as_json_and_a_wrong_one_can_be_corrected() -> None:
    server = GameServer(action=JSON_GUESS)
    session = ScriptedSession(lines("five", '{"guess": "5"}', '{"number": "5", "is_sure": true}'))
    [outcome] = play_with(server, session)
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == Reward(1.0, True, turns=(0.0, 0.0, 1.0))
    assert said(session.calls[2].messages)[2::2] == [
        "user: This is not an action: write a JSON object.",
        "user: This is not an action: guess: extra fields not permitted",
    ]


def test_a_setting_names_the_field_that_gets_the_words_of_the_policy() -> None:
    server = GameServer(action=JSON_GUESS)
    [outcome] = play_with(server, ScriptedSession(lines("5")), settings=('action="number"',))
    assert isinstance(outcome, EpisodeDone)
    assert server.asked[-1]["data"] == {"number": "5"}


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (GameServer(), "the game is broken"),
        (GameServer(refusal={"message": "2 of 2 sessions", "code": "CAPACITY_REACHED"}), "max_concurrent_envs"),
    ],
)
def test_a_server_that_fails_or_refuses_fails_the_session_and_scores_nothing(
    server: GameServer, reason: str
) -> None:
    [outcome] = play_with(server, ScriptedSession(lines("3", "boom")))
    assert reason in reason_of(outcome)


def test_a_limit_of_turns_keeps_what_was_earned() -> None:
    [outcome] = play_with(GameServer(), ScriptedSession(lines("3"), max_turns=2))
    assert isinstance(outcome, EpisodeDone)
    assert (outcome.reward.value, outcome.is_truncated) == (-0.5, True)


@pytest.mark.parametrize(
    ("address", "reason"),
    [("http://127.0.0.1:9", "start its server first"), ("localhost", "names no server")],
)
def test_an_address_where_no_server_is_refuses_the_run(address: str, reason: str) -> None:
    async def run() -> None:
        async with open_episode(RolloutConfig(episode=f"openenv:{address}")):
            pass

    with pytest.raises(ConfigError, match=reason):
        asyncio.run(run())


def test_a_setting_that_names_no_field_refuses_the_run() -> None:
    with pytest.raises(ConfigError, match="its fields are number"):
        play_with(GameServer(), ScriptedSession(lines("5")), settings=('action="message"',))

"""What a chat session becomes is what the trainer accepts: every sampled token once, whatever the client did."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from event_loops import in_event_loop
from scripted_policy import ScriptedPolicy
from tokenizer_kinds import byte_level, load

from freerun.chat.messages import ChatCall, Message
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.config.objective import ObjectiveConfig
from freerun.controller.group_check import check_group
from freerun.trainer.check import check_trajectory
from freerun.trainer.rating import rate
from freerun.types import Group, Prompt, Reward, Trajectory

LIMITS = SessionLimits(max_turns=8, max_session_tokens=2000, max_completion_tokens=50)
NEWEST = 200
"""Above the versions that the scripted policy notes."""


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def conversation_of(*texts: str) -> tuple[Message, ...]:
    """The user's and the assistant's turns, in turn."""
    return tuple((user if i % 2 == 0 else assistant)(text) for i, text in enumerate(texts))


CALLS: dict[str, Sequence[ChatCall]] = {
    "appended": [ChatCall(messages=conversation_of(*turns)) for turns in (["a"], ["a", "one", "b"])],
    "edited": [
        ChatCall(messages=conversation_of("a")),
        ChatCall(messages=conversation_of("a", "one", "b")),
        ChatCall(messages=conversation_of("a", "something else", "b")),
        ChatCall(messages=conversation_of("a", "one", "b", "two", "c")),
    ],
    "siblings": [
        ChatCall(messages=conversation_of("a"), num_replies=2),
        ChatCall(messages=conversation_of("a", "two", "b")),
    ],
}


@in_event_loop
async def test_sequences_of_chat_sessions_are_trajectories_of_whole_samples(tmp_path: Path) -> None:
    renderer = Renderer(load(tmp_path, byte_level()), use_chat_template=True)
    trajectories: list[Trajectory] = []
    sampled: list[int] = []
    for sample, (name, calls) in enumerate(CALLS.items()):
        policy = ScriptedPolicy(renderer.tokenizer, ["one", "two", "three", "four"])
        session = ChatSession(renderer, policy, LIMITS)
        for call in calls:
            await session.reply(call)
        reward = Reward(float(sample), True, turns=tuple(np.arange(session.num_calls, dtype=float).tolist()))
        trajectories += [
            Trajectory(
                prompt=Prompt(ordinal=0, key=name, text="", answer="", token_ids=sequence.prompt_token_ids),
                sample=sample,
                part=part,
                completion=sequence.completion,
                reward=reward,
            )
            for part, sequence in enumerate(session.sequences())
        ]
        sampled.append(sum(len(completion.token_ids) for completion in policy.completions))
    group = Group(ordinal=0, start_version=0, trajectories=tuple(trajectories))
    check_group(group, group_size=len(CALLS))
    for trajectory in trajectories:
        check_trajectory(trajectory, version=NEWEST)
    assert [sample.num_sampled for sample in group.samples] == sampled
    assert [len(sample.parts) for sample in group.samples] == [1, 2, 2]
    assert [sample.num_calls for sample in group.samples] == [2, 4, 3]
    rated, _ = rate([group], ObjectiveConfig(advantage="rloo"), max_completion_tokens=50)
    assert sum(len(r.advantages) for r in rated) == sum(sampled)

"""The episode of `rollout.tools`: the policy may call tools before it answers, and its answer is graded."""

import contextlib
from collections.abc import Sequence

from freerun.chat.messages import Message
from freerun.errors import TruncatedError
from freerun.rollout.episode import Chat, Episode, Policy, Task
from freerun.rollout.tools import PolicyTool


def tool_episode(tools: Sequence[PolicyTool]) -> Episode:
    """An episode that offers these tools and grades the last reply."""

    async def episode(task: Task, policy: Policy) -> float:
        chat = policy.chat(tools=tools)
        # The reply is graded even at a limit: if a grader gives less than 0 for a wrong answer, a reward of 0
        # at limits would teach the policy to run into them.
        with contextlib.suppress(TruncatedError):
            await chat.run(task.text)
        return await task.grade(_last_words(chat))

    return episode


def _last_words(chat: Chat) -> str:
    last: Message | None = next((m for m in reversed(chat.messages) if m.role == "assistant"), None)
    return last.content if last is not None else ""

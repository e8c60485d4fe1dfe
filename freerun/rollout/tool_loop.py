"""The episode of `rollout.tools`: the policy may call tools before it answers, and its answer is graded."""

import contextlib
from collections.abc import Sequence

from freerun.chat.messages import Message
from freerun.errors import TruncatedError
from freerun.rollout.episode import Chat, Episode, Policy, Task
from freerun.rollout.tools import PolicyTool


def tool_episode(tools: Sequence[PolicyTool]) -> Episode:
    """An episode that offers these tools."""

    async def episode(task: Task, policy: Policy) -> float:
        chat = policy.chat(tools=tools)
        # It is graded even at a limit: a grader may give less than 0 to a wrong answer, and then 0 for
        # running into limits would be worth learning.
        with contextlib.suppress(TruncatedError):
            await chat.run(task.text)
        return await task.grade(_last_words(chat))

    return episode


def _last_words(chat: Chat) -> str:
    last: Message | None = next((m for m in reversed(chat.messages) if m.role == "assistant"), None)
    return last.content if last is not None else ""

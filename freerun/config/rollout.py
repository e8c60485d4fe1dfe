"""How a prompt becomes trajectories: by one completion, or by a session of many turns with tools or an agent.

A session is one sample of a group. Its episode, tools or program are the user's code and run in processes of
their own, the agent workers, which are killed when they hang.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from freerun.config.arguments import read_arguments
from freerun.config.section import Section, require
from freerun.config.values import Count, GroupCount, NumProcesses, Seconds

History = Literal["template", "append"]


@dataclass(frozen=True)
class RolloutConfig(Section, name="rollout"):
    episode: str = ""
    """Your own use of the policy as "module:function", async def episode(task, policy) -> reward, or a class with
    reset and step. Without episode, tools and command a prompt gets one completion, which is graded."""
    tools: tuple[str, ...] = ()
    """Functions as "module:function" that the policy may call before it answers; its answer is graded."""
    command: str = ""
    """A program that gets the task on stdin and asks the policy at OPENAI_BASE_URL; its last line is graded."""
    settings: tuple[str, ...] = ()
    """Arguments of the episode, task.settings, each as name=value in TOML: "size=7", 'split="train"'."""
    num_workers: NumProcesses = 1
    """Agent worker processes, which run the sessions."""
    sessions_per_worker: GroupCount = 256
    """Sessions at once in each worker; those that wait for tools count too."""
    session_seconds: Seconds = 120.0
    """A session that takes longer is cut off and scored. While the policy samples or a grader works, its clock
    stands still."""
    tool_seconds: Seconds = 10.0
    """A tool that takes longer is given up; the policy is told so and continues."""
    max_turns: Count = 16
    """A session that asks the policy more often is cut off and scored."""
    max_session_tokens: Count = 2048
    """The longest conversation in tokens, prompt and all turns; a longer session is cut off and scored."""
    history: History = "template"
    """Earlier turns of the policy: template shows them as the chat template prints them, which may leave out
    thinking; append keeps them as they were sampled."""

    @property
    def runs_sessions(self) -> bool:
        """Whether prompts are played in sessions, by agent workers."""
        return bool(self.episode or self.tools or self.command)

    @property
    def max_sessions(self) -> int | None:
        """Sessions that all workers together run at once; None without sessions."""
        return self.num_workers * self.sessions_per_worker if self.runs_sessions else None

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """`settings` by name."""
        return read_arguments(self.settings, key="rollout.settings")

    def check(self) -> None:
        chosen = [name for name in ("episode", "tools", "command") if getattr(self, name)]
        require(
            len(chosen) <= 1,
            f"{' and '.join(f'rollout.{name}' for name in chosen)} exclude each other; set one of them (an "
            "episode passes its tools to policy.chat)",
        )
        require(all(self.tools), "rollout.tools holds an empty string; name functions as module:function")
        for key in ("episode", "command"):
            value = getattr(self, key)
            require(not value or bool(value.strip()), f"rollout.{key} = {value!r} is blank; name one or remove it")
        require(
            not self.settings or bool(self.episode),
            "rollout.settings are the arguments of rollout.episode, which is empty; set it or remove them",
        )
        self.arguments  # noqa: B018 - raises what is wrong with them


@dataclass(frozen=True)
class GatewayConfig(Section, name="gateway"):
    address: str = "127.0.0.1:0"
    """Where agents reach the policy over HTTP, host:port; port 0 takes a free one. Every session has its own
    key."""
    key: str = ""
    """Keys of sessions begin with this; needed for an address that other machines can reach."""

    def check(self) -> None:
        require(
            re.fullmatch(r"[^\s/]+:\d{1,5}", self.address) is not None,
            f'gateway.address = "{self.address}" is not host:port, such as 127.0.0.1:0',
        )

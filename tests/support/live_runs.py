"""Runs on live traffic as a user starts them, and clients that rate what they get."""

import re
from pathlib import Path
from typing import Any

import psutil
from anthropic import Anthropic
from openai import OpenAI
from served_models import Server

from freerun.controller.checkpoint import read_checkpoint
from freerun.events.reader import RunReader

LIVE = (
    "--online.feedback_seconds", "60", "--sampling.group_size", "1", "--sampling.max_completion_tokens", "8",
    "--rollout.max_session_tokens", "100", "--objective.advantage", "global", "--train.prompts_per_step", "4",
    "--train.num_minibatches", "1", "--buffer.max_staleness", "2", "--eval.num_prompts", "0",
    "--buffer.policy", "drop",
    "--train.num_steps", "400", "--checkpoint.every_steps", "2", "--data.use_chat_template", "false",
)  # fmt: skip


class LiveRun(Server):
    """`freerun serve RECIPE`, with clients."""

    def __init__(self, target: Path, *arguments: str, directory: Path) -> None:
        super().__init__(directory, str(target), *arguments)
        self.run_path = directory / "runs" / "tiny"

    @property
    def url(self) -> str:
        found = re.search(r"live traffic is served at (http\S+)", self.output)
        return found[1] if found else ""

    def until_served(self) -> None:
        self.until(lambda: bool(self.url))

    def has_saved(self, version: int) -> bool:
        """Whether this version or a later one is saved; a checkpoint is skipped while another is written."""
        return any(int(saved) >= version for saved in re.findall(r"checkpoint (\d+) saved", self.output))

    @property
    def version(self) -> int:
        """The newest step that was told."""
        return max((int(step) for step in re.findall(r"step (\d+)/", self.output)), default=0)

    def openai(self) -> OpenAI:
        return OpenAI(base_url=self.url, api_key=self.told("key"), timeout=60)

    def anthropic(self) -> Anthropic:
        return Anthropic(base_url=self.url.removesuffix("/v1"), api_key=self.told("key"), timeout=60)

    def children(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def reader(self) -> RunReader:
        return RunReader(self.run_path)


def rate(client: OpenAI, reply_id: str, reward: float) -> bool:
    """Whether the run waited for it."""
    answer = client.with_options(max_retries=0)._client.post(
        f"{client.base_url}feedback",
        json={"id": reply_id, "reward": reward},
        headers={"authorization": f"Bearer {client.api_key}"},
    )
    assert answer.status_code in (200, 404), answer.text
    return bool(answer.status_code == 200)


def ask(client: OpenAI, text: str) -> tuple[str, str]:
    """The id and the text of a reply."""
    message: Any = {"role": "user", "content": text}
    completion = client.chat.completions.create(model="model", messages=[message])
    return completion.id, completion.choices[0].message.content or ""


def taste(text: str) -> float:
    """What the users of these tests like: digits."""
    return sum(character.isdigit() for character in text) / 8


def assert_every_session_once(run: LiveRun, version: int) -> int:
    """The ledger: every recorded session was trained on once, is lost, or waits; returns how many were unrated."""
    state = read_checkpoint(run.run_path / "checkpoints" / f"step-{version}").state
    with run.reader() as reader:
        trained = [t.ordinal for v in range(1, version + 1) for t in reader.trajectories(v)]
    waiting = [group.ordinal for group in state.buffer.ready]
    assert len(trained) == len(set(trained)) == version * 4
    assert not {*trained} & {*waiting}
    totals = state.buffer.totals
    num_lost = totals.get("unrated", 0) + totals.get("dropped", 0)
    assert totals["trained"] == len(trained)
    assert len(trained) + len(waiting) + len(state.buffer.to_restart) + num_lost == state.cursor
    return totals.get("unrated", 0)

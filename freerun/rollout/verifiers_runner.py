"""Plays environments of verifiers. This file is run by the Python of an environment with verifiers, not freerun's.

    python verifiers_runner.py play '{"package": "my-env", "settings": {}}'
        stdin    {"session": 3, "task": 17, "base_url": ..., "api_key": ..., "model": ...}
                 {"session": 3} stops it
        stdout   {"ready": true} when it has started
                 {"session": 3, "reward": 1.0, "parts": {}} or {"session": 3, "error": ...}
    python verifiers_runner.py tasks '{"package": "my-env", "settings": {}}' > tasks.jsonl
        stdout   one row for each task of the environment, for data.path

It ends when stdin does. It imports nothing from freerun; `verifiers_episode.py` is the other side.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

DEFAULT_HARNESS = "null"
"""A plain loop of chat and tools, used unless the package brings its own harness."""


class Tasks:
    """The tasks of a taskset by number; an endless taskset is read only as far as needed."""

    def __init__(self, taskset: Any) -> None:
        self._left: Iterator[Any] = iter(taskset)
        self._read: list[Any] = []

    def __getitem__(self, number: int) -> Any:
        while len(self._read) <= number:
            try:
                self._read.append(next(self._left))
            except StopIteration:
                raise LookupError(f"there is no task {number}; the environment has {len(self._read)}") from None
        return self._read[number]


def load(package: str, settings: dict[str, Any]) -> Any:
    """The environment, with all of its agents in processes of this machine."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

    config = resolve_env_config({"taskset": {"id": package, **settings}})
    has_harness = default_harness_id(package) == package
    agent = {"runtime": {"type": "subprocess"}, **({} if has_harness else {"harness": {"id": DEFAULT_HARNESS}})}
    agents = dict.fromkeys(agent_config_fields(config), agent)
    return load_environment(resolve_env_config({"taskset": {"id": package, **settings}, **agents}))


async def play(environment: Any, task: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Play one episode, whose only agent is the policy, and return its rewards."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext

    # verifiers reads keys from its environment, and hides variables with API_KEY in their names from programs.
    variable = f"FREERUN_API_KEY_{asked['session']}"
    os.environ[variable] = asked["api_key"]
    try:
        client = EvalClientConfig(base_url=asked["base_url"], api_key_var=variable)
        episode = await environment.run_episode(task, ModelContext(model=asked["model"], client=client))
    finally:
        del os.environ[variable]
    errors = [f"{error.type}: {error.message}" for owner in (episode, *episode.traces) for error in owner.errors]
    if not episode.ok:
        raise RuntimeError("; ".join(errors) or "the episode failed without a reason")
    if len(episode.traces) != 1:
        raise RuntimeError(f"the episode has {len(episode.traces)} agents; freerun plays environments of one")
    [trace] = episode.traces
    parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": trace.reward, "parts": parts}


class Runner:
    """Plays episodes concurrently, each in a task of the event loop."""

    def __init__(self, environment: Any, answers: TextIO) -> None:
        self._environment = environment
        self._tasks = Tasks(environment.taskset)
        self._answers = answers
        self._playing: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until stdin ends."""
        lines = asyncio.StreamReader(limit=2**20)
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        async with self._environment.serving():
            self._say({"ready": True})
            while line := await lines.readline():
                self._take(json.loads(line))
            for playing in self._playing.values():
                playing.cancel()
            await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def _take(self, asked: dict[str, Any]) -> None:
        session = asked["session"]
        if "task" in asked:
            self._playing[session] = asyncio.ensure_future(self._play(asked))
        elif session in self._playing:
            self._playing[session].cancel()

    async def _play(self, asked: dict[str, Any]) -> None:
        session = asked["session"]
        try:
            answer = await play(self._environment, self._tasks[asked["task"]], asked)
        except Exception as error:  # noqa: BLE001 - the edge of code that is not ours: a failure is data
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            del self._playing[session]
        self._say({"session": session, **answer})

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def main() -> None:
    verb, wanted = sys.argv[1], json.loads(sys.argv[2])
    # Output of an environment must not look like an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Programs that verifiers starts need uv, which may be installed only beside this Python.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    environment = load(wanted["package"], wanted["settings"])
    if verb == "tasks":
        for number, task in enumerate(environment.taskset):
            row = {"question": task.data.prompt_text, "answer": "", "task": number}
            answers.write(json.dumps(row, ensure_ascii=False) + "\n")
        answers.close()
    else:
        asyncio.run(Runner(environment, answers).run())


if __name__ == "__main__":
    main()

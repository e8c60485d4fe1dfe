"""A run as large as wanted, with all that its processes report: what the page and the report are measured on.

Tokens and logprobs are drawn once and cut differently for every sample: a report is as hard to pack as a real one.
"""

from pathlib import Path

import numpy as np

from bench.page_events import events_before_step
from freerun.events.events import RunStarted, StepFinished
from freerun.events.store import Store
from freerun.types import Completion, Group, Prompt, Reward, Span, StepResult, Trajectory

GROUPS_PER_STEP, GROUP_SIZE, NUM_TOKENS = 64, 8, 256
STEPS_OF_A_MILLION = 2000
NUM_OTHER_METRICS = 32
VOCABULARY = 49152
_DRAWN = np.random.default_rng(0)
_IDS = _DRAWN.integers(0, VOCABULARY, 1 << 16).astype(np.int32)
_LOGPROBS = (-_DRAWN.exponential(0.5, 1 << 16)).astype(np.float32)


def write_run(
    directory: Path, *, num_steps: int, num_groups: int = GROUPS_PER_STEP, num_tokens: int = NUM_TOKENS
) -> None:
    """A run of which each step has trained on new groups; of the default size 512 samples a step."""
    with Store(directory) as store:
        store(a_start(num_steps))
        for version in range(1, num_steps + 1):
            for event in events_before_step(version, num_groups):
                store(event)
            store(a_step(version, num_groups, num_tokens))
            if version % 20 == 0:
                store.flush()  # or all of it waits in memory


def a_start(num_steps: int) -> RunStarted:
    return RunStarted(
        seconds=0.0, name="bench", directory="bench", num_steps=num_steps, version=0, max_staleness=4
    )


def a_step(version: int, num_groups: int, num_tokens: int = NUM_TOKENS) -> StepFinished:
    groups = tuple(_group(version * num_groups + i, version, num_tokens) for i in range(num_groups))
    metrics = {"reward": version / 100, "entropy": 1.0, "num_tokens": float(num_groups * GROUP_SIZE * num_tokens)}
    metrics |= {f"metric_{i}": version * 0.1 + i for i in range(NUM_OTHER_METRICS)}
    result = StepResult(version=version, metrics=metrics, staleness_counts={1: num_groups * GROUP_SIZE})
    return StepFinished(seconds=version * 1.0, result=result, groups=groups, step_seconds=0.7, wait_seconds=0.2)


def _group(ordinal: int, version: int, num_tokens: int) -> Group:
    prompt = Prompt(
        ordinal=ordinal, key=str(ordinal), text="7*8=", answer="56", token_ids=np.arange(4, dtype=np.int32)
    )
    trajectories = tuple(
        Trajectory(
            prompt=prompt,
            sample=i,
            completion=_completion(ordinal * GROUP_SIZE + i, version, num_tokens),
            reward=Reward(float(i), i == 0),
        )
        for i in range(GROUP_SIZE)
    )
    return Group(ordinal=ordinal, start_version=version - 1, trajectories=trajectories)


def _completion(number: int, version: int, num_tokens: int) -> Completion:
    begin = 97 * number % (len(_IDS) - num_tokens)
    return Completion(
        token_ids=_IDS[begin : begin + num_tokens],
        logprobs=_LOGPROBS[begin : begin + num_tokens],
        spans=(Span(version - 1, num_tokens),),
        finish_reason="stop",
        text=" 56\n" * (num_tokens // 4),
    )

"""A simulated run whose samples are sessions: several calls, tools between them, one or more sequences each."""

import asyncio
import itertools
from typing import Any

import numpy as np
from msgspec import structs
from simulated_run import World

from freerun.errors import RolloutError
from freerun.types import Completion, Prompt, Request, Reward, Sampling, Span, Trajectory

MAX_CALLS = 4
NUM_GIVEN = 3
"""Tokens that the policy is given between two calls."""


class SessionWorld(World):
    """The same world, with sessions that wait for tools and sometimes lose their history."""

    max_tool_seconds = 3.0

    async def workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        verdicts = self.verdicts(prompt)
        sessions = await asyncio.gather(
            *(self.run_session(prompt, sample, generator) for sample in range(self.recipe.sampling.group_size))
        )
        if self.rng.random() < self.failure_rate:
            raise RolloutError("as the dice fell")
        return tuple(
            Trajectory(prompt=prompt, sample=sample, part=part, completion=completion, reward=reward)
            for sample, (sequences, is_correct) in enumerate(zip(sessions, verdicts, strict=True))
            for reward in [Reward(float(is_correct), is_correct)]
            for part, completion in enumerate(sequences)
        )

    async def run_session(self, prompt: Prompt, sample: int, generator: Any) -> list[Completion]:
        """One sequence, or another one after each loss of history."""
        session, sequences = next(self.request_ids), list[Completion]()
        for call in range(self.rng.randint(1, MAX_CALLS)):
            if call:
                await asyncio.sleep(self.rng.random() * self.max_tool_seconds)
            request = Request(
                request_id=next(self.request_ids),
                ordinal=prompt.ordinal,
                prompt_token_ids=prompt.token_ids,
                num_samples=1,
                sampling=Sampling(max_completion_tokens=3),
                sample=sample,
                call=call,
                session=session,
            )
            [completion] = await generator.generate(request)
            said = structs.replace(
                completion, spans=tuple(Span(s.version, s.num_tokens, call) for s in completion.spans)
            )
            if sequences and self.rng.random() < 0.7:
                sequences[-1] = joined(sequences[-1], said)
            else:
                sequences.append(said)
        return sequences


def joined(before: Completion, after: Completion) -> Completion:
    """Two calls of one sequence, with given tokens between them."""
    return Completion(
        token_ids=np.concatenate([before.token_ids, np.ones(NUM_GIVEN, np.int32), after.token_ids]),
        logprobs=np.concatenate([before.logprobs, np.zeros(NUM_GIVEN, np.float32), after.logprobs]),
        spans=(*before.spans, Span(None, NUM_GIVEN), *after.spans),
        finish_reason=after.finish_reason,
        text=before.text + after.text,
    )


def num_parts(trajectories: tuple[Trajectory, ...]) -> list[int]:
    """Sequences of each sample."""
    by_sample = itertools.groupby(trajectories, key=lambda trajectory: trajectory.sample)
    return [len(list(parts)) for _, parts in by_sample]

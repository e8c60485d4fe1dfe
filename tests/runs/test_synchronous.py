"""`max_staleness = 0` is the synchronous algorithm, and a resumed run is the run: bit for bit.

The reference is a plain loop that calls engine and trainer directly: no controller, gate, buffer,
process or shared memory.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from lively_grader import score
from tiny_runs import Run, assert_exactly_once, make_run, recipe_of
from torch import Tensor

from freerun.config.recipe import Recipe
from freerun.data.source import PromptSource
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.model.checkpoint import load_model
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Completion, Group, Prompt, Request, Reward, Sampling, Trajectory

SYNCHRONOUS = ("--buffer.max_staleness", "0", "--train.num_threads", "1")


class PlainLoop:
    """Generate a batch, grade it, train on it, copy the weights; again."""

    def __init__(self, recipe: Recipe) -> None:
        torch.set_num_threads(1)
        self.recipe = recipe
        directory = Path(recipe.model.path)
        self.tokenizer = Tokenizer.load(directory)
        self.source = PromptSource(
            load_prompts(recipe.data), self.tokenizer, config=recipe.data, seed=recipe.run.seed
        )
        self.engine = Engine(
            load_model(directory),
            recipe.engine,
            text=self.tokenizer,
            max_sequence_tokens=recipe.max_sequence_tokens,
            seed=recipe.run.seed,
        )
        self.trainer = PolicyTrainer(
            load_model(directory),
            recipe.train,
            recipe.objective,
            temperature=recipe.sampling.temperature,
            max_completion_tokens=recipe.sampling.max_completion_tokens,
        )

    def run(self) -> list[Group]:
        trained: list[Group] = []
        for version in range(self.recipe.train.num_steps):
            weights = {name: p.detach().clone() for name, p in self.trainer.model.named_parameters()}
            self.engine.load(version, weights)
            groups = self.batch(version)
            self.trainer.step(groups)
            trained += groups
        return trained

    def batch(self, version: int) -> list[Group]:
        """One batch; groups without variance are replaced, once all that were started have finished."""
        groups: list[Group] = []
        while (num_missing := self.recipe.train.prompts_per_step - len(groups)) > 0:
            prompts = [self.source.take() for _ in range(num_missing)]
            for group in self.generate(prompts, version):
                rewards = {trajectory.reward.value for trajectory in group.trajectories}
                if len(rewards) > 1 or not self.recipe.objective.dynamic_sampling:
                    groups.append(group)
        return groups

    def generate(self, prompts: list[Prompt], version: int) -> list[Group]:
        sampling = Sampling(
            max_completion_tokens=self.recipe.sampling.max_completion_tokens,
            stop_token_ids=self.tokenizer.stop_token_ids,
        )
        for prompt in prompts:
            self.engine.submit(
                Request(
                    request_id=prompt.ordinal,
                    ordinal=prompt.ordinal,
                    prompt_token_ids=prompt.token_ids,
                    num_samples=self.recipe.sampling.group_size,
                    sampling=sampling,
                )
            )
        finished: dict[int, tuple[Completion, ...]] = {}
        while self.engine.has_work:
            finished |= {request.ordinal: completions for request, completions in self.engine.step()}
        return [self.grade(prompt, finished[prompt.ordinal], version) for prompt in prompts]

    def grade(self, prompt: Prompt, completions: tuple[Completion, ...], version: int) -> Group:
        rewards = [score(prompt.text, completion.text, prompt.answer) for completion in completions]
        return Group(
            ordinal=prompt.ordinal,
            start_version=version,
            trajectories=tuple(
                Trajectory(prompt=prompt, sample=i, completion=c, reward=Reward(r, r > 0))
                for i, (c, r) in enumerate(zip(completions, rewards, strict=True))
            ),
        )


def final_weights(recipe: Recipe) -> dict[str, Tensor]:
    directory = Path(recipe.run.directory) / recipe.run.name / "checkpoints" / f"step-{recipe.train.num_steps}"
    return dict(load_model(directory / "model").named_parameters())


@pytest.mark.parametrize("filters", ["false", "true"])
def test_a_run_with_max_staleness_zero_is_the_plain_synchronous_loop(tmp_path: Path, filters: str) -> None:
    # Short completions in small groups, so that groups without variance do occur.
    overrides: tuple[str, ...] = (*SYNCHRONOUS, "--sampling.group_size=2", "--sampling.max_completion_tokens=5")
    overrides += ("--objective.dynamic_sampling", filters)
    path = make_run(tmp_path)
    recipe = recipe_of(path, *overrides)
    run = Run(path, *overrides)
    assert run.wait() == 0, run.output

    plain = PlainLoop(recipe)
    expected = plain.run()
    recorded = [t for version in range(1, 9) for t in run.reader().trajectories(version)]
    wanted = [t for group in expected for t in group.trajectories]
    assert len(recorded) == len(wanted)
    for mine, reference in zip(recorded, wanted, strict=True):
        assert (mine.ordinal, mine.sample) == (reference.prompt.ordinal, reference.sample)
        assert mine.token_ids.tolist() == reference.completion.token_ids.tolist()
        assert np.array_equal(mine.logprobs, reference.completion.logprobs)
        assert mine.staleness == 0
    weights = final_weights(recipe)
    initial = dict(load_model(Path(recipe.model.path)).named_parameters())
    for name, parameter in plain.trainer.model.named_parameters():
        assert torch.equal(weights[name], parameter), name
        assert not torch.equal(weights[name], initial[name]), f"{name} was never trained"
    if filters == "true":
        assert plain.source.cursor > len(expected), "no group was filtered: the test shows nothing"


@pytest.mark.slow
def test_an_interrupted_and_resumed_synchronous_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole")
    run = Run(whole, *SYNCHRONOUS)
    assert run.wait() == 0, run.output

    parts = make_run(tmp_path / "parts")
    first = Run(parts, *SYNCHRONOUS, "--train.num_steps", "5")
    assert first.wait() == 0, first.output
    second = Run(parts, "--resume", "--train.num_steps", "8")
    assert second.wait() == 0, second.output

    assert_exactly_once(second, num_steps=8)
    expected, actual = (final_weights(recipe_of(p, *SYNCHRONOUS)) for p in (whole, parts))
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight), name
    for version in range(1, 9):
        for mine, reference in zip(
            second.reader().trajectories(version), run.reader().trajectories(version), strict=True
        ):
            assert mine.token_ids.tolist() == reference.token_ids.tolist()
            assert np.array_equal(mine.logprobs, reference.logprobs)


@pytest.mark.slow
def test_the_same_synchronous_run_twice_has_the_same_bits(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("one", "other")]
    overrides = (*SYNCHRONOUS, "--train.num_steps", "4")
    for path in paths:
        run = Run(path, *overrides)
        assert run.wait() == 0, run.output
    one, other = (final_weights(recipe_of(path, *overrides)) for path in paths)
    assert all(torch.equal(one[name], other[name]) for name in one)

"""Group replay: samples recorded groups again, under the versions that sampled them.

    store ─► batches ─► trainer ─► version 3 ─► engine: tokens of version 3      the recorded ones?
                          └──────► version 4 ─► engine: tokens of version 4

The trainer makes one version after the other from the recorded batches (`replay.py`), and the engine samples
with each version the tokens that it sampled in the run. So no version is stored, and one pass serves any number
of groups.

Groups of sessions with other engine or sampling settings get a separate engine. Lost groups are recorded
without the versions of their tokens, so they cannot be sampled again.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch

from freerun.backends.backend import find_backend
from freerun.backends.native.engine import open_model
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import read_checkpoint
from freerun.data.tokenizer import Tokenizer
from freerun.engine.resampling import RecordedCall, Resampled, Resampling
from freerun.errors import CheckpointError, FreerunError
from freerun.events.reader import RunReader
from freerun.events.schema import TrajectoryRow
from freerun.processes.placement import place, rollout_names
from freerun.replay.difference import Difference
from freerun.replay.plan import ReplayPlan, plan_replay, replayed_recipe
from freerun.replay.replay import ReplayProgress, replay
from freerun.replay.settings import RunSettings, group_sessions
from freerun.rollout.single_turn import to_sampling
from freerun.session.assembly import engine_start
from freerun.session.run_directory import RunDirectory
from freerun.types import Publication, WeightRoute
from freerun.weights.channel import WeightChannel


@dataclass(frozen=True)
class SampledAlike:
    """Calls that were sampled with the same settings."""

    recipe: Recipe
    calls: tuple[RecordedCall, ...]

    @cached_property
    def versions(self) -> set[int]:
        return {version for call in self.calls for version in call.versions.tolist()}


@dataclass(frozen=True)
class GroupPlan:
    """Recorded calls, and the training that makes their versions."""

    training: ReplayPlan
    parts: tuple[SampledAlike, ...]
    num_samples: int
    warnings: tuple[str, ...]

    @property
    def calls(self) -> list[RecordedCall]:
        return [call for part in self.parts for call in part.calls]

    @property
    def versions(self) -> list[int]:
        return sorted(set().union(*(part.versions for part in self.parts)))

    @property
    def is_of_sessions(self) -> bool:
        return len(self.calls) > self.num_samples


@dataclass(frozen=True)
class ReplayedGroups:
    """The result of each call, and the first version whose weights differ from the recorded ones."""

    results: tuple[Resampled, ...]
    difference: Difference | None


def plan_groups(run: RunDirectory, ordinals: Sequence[int], *, num_threads: int | None = None) -> GroupPlan:
    """Read the given groups, or all; raises before work starts if some cannot be sampled again."""
    with RunReader(run.path) as reader:
        rows = [row for ordinal in ordinals or reader.trained_ordinals() for row in _group(reader, ordinal)]
        settings, started = RunSettings.read(run, reader), group_sessions(reader)
    if not rows:
        raise FreerunError(f'the run "{run.path}" has trained on no group yet')
    sampled = {span.version for row in rows for span in row.spans if span.version is not None}
    first, last = min(sampled), max(sampled)
    # A later step has consumed them, so there is a step after the last version.
    training = plan_replay(run.path, first=first + 1, last=max(first + 1, last), num_threads=num_threads)
    recipes = [settings.of_group(row.ordinal, started, version=row.version) for row in rows]
    parts = _parts(rows, [replayed_recipe(recipe, training.num_threads) for recipe in recipes])
    training = _with_steps(_from_checkpoint(training, first) if first == last else training, last)
    num_samples = len({(row.ordinal, row.sample) for row in rows})
    return GroupPlan(training, parts, num_samples, (*training.warnings, *_uncertain(parts)))


def _parts(rows: Sequence[TrajectoryRow], recipes: Sequence[Recipe]) -> tuple[SampledAlike, ...]:
    """The calls of all rows, grouped by equal settings."""
    found: list[tuple[Recipe, list[RecordedCall]]] = []
    for row, recipe in zip(rows, recipes, strict=True):
        if not find_backend(backend := recipe.engine.backend).samples_again:
            raise FreerunError(
                f"group {row.ordinal} was sampled by {backend}, whose random numbers are not those of the "
                "embedded engine; only its training can be replayed"
            )
        alike = next((calls for other, calls in found if _samples_alike(other, recipe)), None)
        if alike is None:
            found.append((recipe, alike := []))
        alike.extend(calls_of(row))
    return tuple(SampledAlike(recipe, tuple(calls)) for recipe, calls in found)


def _samples_alike(one: Recipe, other: Recipe) -> bool:
    of_one, of_other = ((r.engine, r.sampling, r.max_sequence_tokens) for r in (one, other))
    return of_one == of_other


def replay_groups(plan: GroupPlan, *, on_progress: ReplayProgress) -> ReplayedGroups:
    """Make the versions, and sample with each of them the tokens that it sampled in the run."""
    sampler = _GroupSampler(plan)
    replayed = replay(plan.training, on_progress=on_progress, on_version=sampler.visit)
    return ReplayedGroups(tuple(sampler.results), replayed.difference)


def calls_of(row: TrajectoryRow) -> Iterator[RecordedCall]:
    """A completion is one call; a session has several, each with everything before it as its prompt."""
    begin = 0
    for call, grouped in groupby(row.spans, key=lambda span: None if span.version is None else span.call):
        spans = list(grouped)
        lengths = [span.num_tokens for span in spans]
        end = begin + sum(lengths)
        if call is not None:
            yield RecordedCall(
                ordinal=row.ordinal,
                sample=row.sample,
                part=row.part,
                call=call,
                prompt_token_ids=np.concatenate((row.prompt_token_ids, row.token_ids[:begin])),
                token_ids=row.token_ids[begin:end],
                logprobs=row.logprobs[begin:end],
                versions=np.repeat([span.version for span in spans], lengths),
            )
        begin = end


def _group(reader: RunReader, ordinal: int) -> list[TrajectoryRow]:
    [*found] = reader.plain_rows(
        "SELECT version FROM trajectories WHERE ordinal = :ordinal LIMIT 1", ordinal=ordinal
    )
    if found:
        return reader.group(found[0][0], ordinal)
    raise FreerunError(_why_not(reader, ordinal))


def _why_not(reader: RunReader, ordinal: int) -> str:
    if ordinal < 0:
        return (
            f"group {ordinal} is a held-out prompt, whose completions one version has sampled: write its model "
            'with "freerun replay RUN --until VERSION --save DIR" and sample it with "freerun eval"'
        )
    outcomes = [row.outcome for row in reader.lost() if row.ordinal == ordinal]
    if outcomes:
        return (
            f"group {ordinal} was {outcomes[-1].replace('_', ' ')}: of what is not trained on the store has the "
            f'text, but not the versions of its tokens; "freerun show {reader.file.parent} --where lost" shows it'
        )
    return (
        f"{reader.file.parent} has not trained on a group {ordinal}; the page and freerun show have their numbers"
    )


def _from_checkpoint(plan: ReplayPlan, version: int) -> ReplayPlan:
    """Train nothing if the only version has a checkpoint, with or without its optimizer."""
    try:
        checkpoint = read_checkpoint(plan.run.checkpoints / f"step-{version}")
    except CheckpointError:
        return plan
    return plan if checkpoint.state.sft else dataclasses.replace(plan, checkpoint=checkpoint, sft=None)


def _with_steps(plan: ReplayPlan, last: int) -> ReplayPlan:
    """Only the steps from the plan's start to the last one; there may be none."""
    cut = [
        dataclasses.replace(each, first=max(each.first, plan.start + 1), last=min(each.last, last))
        for each in plan.stretches
    ]
    steps = tuple(each for each in cut if each.first <= each.last)
    return dataclasses.replace(plan, stretches=steps or (cut[-1],), last=last)


def _uncertain(parts: Sequence[SampledAlike]) -> list[str]:
    """What the record does not contain: which kept caches come from an older version."""
    calls = [call for part in parts if part.recipe.engine.kv_on_load == "keep" for call in part.calls]
    found = []
    if late := late_siblings(calls):
        found.append(
            f'with engine.kv_on_load = "keep" {len(late)} groups have samples that began after a load, with a '
            "cache of the prompt that may be older: their tokens may differ"
        )
    if any(call.call for call in calls):
        found.append(
            'with engine.kv_on_load = "keep" a turn of a session may have begun with a cache of older versions, '
            "which is not recorded: its tokens may differ"
        )
    return found


def late_siblings(calls: Sequence[RecordedCall]) -> set[int]:
    """Ordinals of groups whose samples began under more than one version."""
    began: dict[int, set[int]] = {}
    for call in calls:
        if not call.call:
            began.setdefault(call.ordinal, set()).add(call.first_version)
    return {ordinal for ordinal, versions in began.items() if len(versions) > 1}


class _GroupSampler:
    """An engine for each part of the plan, from its first version on; called from threads, one at a time."""

    def __init__(self, plan: GroupPlan) -> None:
        self._plan = plan
        self._opened: dict[int, tuple[Resampling, WeightChannel]] = {}

    @property
    def results(self) -> list[Resampled]:
        return [result for number in sorted(self._opened) for result in self._opened[number][0].results]

    def visit(self, route: WeightRoute, published: Publication) -> None:
        for number, part in enumerate(self._plan.parts):
            if published.version not in part.versions:
                continue
            # The number of threads is a setting of the calling thread, which may differ between calls.
            torch.set_num_threads(place(part.recipe).seats[rollout_names(part.recipe)[0]].num_threads)
            if number not in self._opened:
                self._opened[number] = self._open(part, route)
            resampling, channel = self._opened[number]
            resampling.load(published.version, channel.fetch(published))

    def _open(self, part: SampledAlike, route: WeightRoute) -> tuple[Resampling, WeightChannel]:
        recipe, directory = part.recipe, self._plan.training.run.model
        model, channel = open_model(engine_start(recipe, directory, route))
        assert channel is not None
        tokenizer = Tokenizer.load(directory)
        resampling = Resampling(
            model,
            recipe.engine,
            text=tokenizer,
            max_sequence_tokens=recipe.max_sequence_tokens,
            seed=recipe.run.seed,
            sampling=to_sampling(recipe.sampling, tokenizer.stop_token_ids),
            calls=part.calls,
        )
        return resampling, channel

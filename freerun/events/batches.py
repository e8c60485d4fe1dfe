"""The batches of a run as its trainer received them, rebuilt from the rows of its store."""

from itertools import groupby

from freerun.events.reader import RunReader
from freerun.events.schema import TrajectoryRow
from freerun.types import Completion, Group, Prompt, Reward, Trajectory


def recorded_batch(rows: list[TrajectoryRow]) -> tuple[Group, ...]:
    """The groups of one step, in recorded order."""
    by_ordinal = groupby(rows, key=lambda row: row.ordinal)
    return tuple(_group(ordinal, tuple(map(_trajectory, of_group))) for ordinal, of_group in by_ordinal)


def recorded_checksums(reader: RunReader) -> dict[int, str]:
    """Checksums by version; a version that was trained but never loaded has none."""
    return {event.version: event.checksum for event in reader.weights_loaded()}


def _group(ordinal: int, trajectories: tuple[Trajectory, ...]) -> Group:
    oldest = min(trajectory.completion.oldest_version for trajectory in trajectories)
    return Group(ordinal=ordinal, start_version=oldest, trajectories=trajectories)


def _trajectory(row: TrajectoryRow) -> Trajectory:
    return Trajectory(
        prompt=Prompt(
            ordinal=row.ordinal,
            key=row.key,
            text=row.prompt,
            answer=row.answer,
            token_ids=row.prompt_token_ids,
        ),
        sample=row.sample,
        part=row.part,
        completion=Completion(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            spans=row.spans,
            finish_reason=row.finish_reason,
            text=row.completion,
        ),
        reward=Reward(row.reward, row.is_correct, row.reward_parts, row.reward_turns),
    )

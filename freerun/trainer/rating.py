"""What each trajectory of a step gets from its sample: advantages, token weights, positions in the timeline.

The unit is the sample, not the sequence: a session that became several sequences has one reward, one weight per
token and one order of calls, and each of its parts takes its share of them. So the way a session was divided
into sequences does not affect gradients.
"""

from collections.abc import Sequence

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.axes import axis_function
from freerun.trainer.batch import Rated
from freerun.trainer.credit import advantages_by_call
from freerun.trainer.timeline import Timeline, lay_out
from freerun.types import Group


def rate(
    groups: Sequence[Group], objective: ObjectiveConfig, *, max_completion_tokens: int
) -> tuple[list[Rated], Timeline | None]:
    """All trajectories of the step, the parts of each sample together, and with a critic the step's timeline."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [sample.num_sampled for sample in samples]
    weights = axis_function(objective, "aggregation")(lengths, max_completion_tokens, objective)
    advantages = advantages_by_call(groups, objective)
    # Grouped by identity: the parts of a sample need not be neighbours in the batch.
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    places_in_batch = {id(trajectory): place for place, trajectory in enumerate(trajectories)}
    rated = [
        Rated(part, of_calls[part.completion.calls], weight, place=places_in_batch[id(part)])
        for sample, of_calls, weight in zip(samples, advantages, weights, strict=True)
        for part in sample.parts
    ]
    if not objective.has_critic:
        return rated, None
    timeline, places = lay_out(samples, turn_discount=objective.turn_discount)
    return [r._replace(places=of_part) for r, of_part in zip(rated, places, strict=True)], timeline

"""Metrics of a batch before training: is there anything to learn from?

equal_group_share          groups whose rewards are all equal, turn by turn; only where the objective compares the
                           samples of a group with each other
all_right_share            groups of equal rewards that are all right; all_wrong_share: all wrong
reward_std                 standard deviation of the rewards of the batch's samples
common_reward, _share      the most common reward, and the share of the samples that have it
distinct_text_share        different texts in a group, as a share of its samples; groups of several samples only
cut_off_share              samples that were cut off at a limit
empty_share                samples without any text but white space
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from freerun.types import WholeSample

GroupOfSamples = tuple[WholeSample, ...]


def group_metrics(groups: Sequence[GroupOfSamples], *, compares_within_groups: bool) -> dict[str, float]:
    samples = [sample for group in groups for sample in group]
    rewards = [sample.reward.value for sample in samples]
    [(common, number)] = Counter(rewards).most_common(1)
    metrics = {
        "reward_std": float(np.std(rewards)),
        "common_reward": common,
        "common_reward_share": number / len(samples),
        "cut_off_share": _share([_is_cut_off(sample) for sample in samples]),
        "empty_share": _share([not _text(sample).strip() for sample in samples]),
    }
    several = [group for group in groups if len(group) > 1]
    if several:
        distinct = [len({_text(sample) for sample in group}) / len(group) for group in several]
        metrics["distinct_text_share"] = float(np.mean(distinct))
    return metrics | (_equal_shares(several) if several and compares_within_groups else {})


def _equal_shares(groups: Sequence[GroupOfSamples]) -> dict[str, float]:
    is_equal = [len({(s.reward.value, s.reward.turns) for s in group}) == 1 for group in groups]
    right = [all(sample.reward.is_correct for sample in group) for group in groups]
    wrong = [not any(sample.reward.is_correct for sample in group) for group in groups]
    return {
        "equal_group_share": _share(is_equal),
        "all_right_share": _share([e and r for e, r in zip(is_equal, right, strict=True)]),
        "all_wrong_share": _share([e and w for e, w in zip(is_equal, wrong, strict=True)]),
    }


def _text(sample: WholeSample) -> str:
    return "\0".join(part.completion.text for part in sample.parts)


def _is_cut_off(sample: WholeSample) -> bool:
    return any(part.completion.finish_reason == "length" for part in sample.parts)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)

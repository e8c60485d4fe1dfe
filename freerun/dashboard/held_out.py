"""Held-out evaluations per prompt: what the policy wrote, and which prompts changed between two versions.

A prompt has changed if its share of correct samples has. Prompts are matched by key.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freerun.dashboard.samples import MAX_LINE, about_prompt, integer_of
from freerun.dashboard.source import Source, finite
from freerun.events.events import PromptResult
from freerun.events.paired import paired_interval
from freerun.events.reader import RunReader
from freerun.events.schema import EvalCompletionRow

MAX_COMPLETIONS = 1000
MAX_CHANGES = 500


@dataclass(frozen=True)
class Evaluated:
    """The recorded data of an evaluation."""

    version: int
    prompts: Sequence[PromptResult]
    completions: Sequence[EvalCompletionRow]

    def texts(self) -> dict[str, str]:
        """The first kept completion of each prompt, if there is one."""
        return {row.key: row.completion[:MAX_LINE] for row in reversed(self.completions)}


def read_evaluated(reader: RunReader, version: int) -> Evaluated:
    return Evaluated(version, reader.eval_prompts(version), reader.eval_completions(version))


def held_out_feed(source: Source, params: Mapping[str, str]) -> object:
    """The evaluation of `version` (default: the last) and the changes since `against` (default: the first)."""
    with source.reader() as reader:
        versions = [row.version for row in reader.evals()]
        version = integer_of(params, "version", versions[-1] if versions else None)
        if version is None:
            return {"version": None, "versions": [], "prompts": [], "completions": [], "changes": None}
        against = integer_of(params, "against", versions[0] if versions else None)
        now = read_evaluated(reader, version)
        is_compared = against is not None and against != version
        before = read_evaluated(reader, against or 0) if is_compared else None
        changes = {"against": against, **changes_between(before, now)} if before else None
    return {
        "version": version,
        "versions": versions,
        "prompts": [
            {
                "ordinal": prompt.ordinal,
                "key": prompt.key,
                "num_samples": prompt.num_samples,
                "num_correct": prompt.num_correct,
                "mean_reward": finite(prompt.mean_reward),
                "mean_length": finite(prompt.mean_length),
                "failure": prompt.failure[:MAX_LINE],
            }
            for prompt in now.prompts
        ],
        "completions": [about_prompt(row) | outcome_of(row) for row in now.completions[:MAX_COMPLETIONS]],
        "changes": changes,
    }


def changes_between(
    before: Evaluated, after: Evaluated, *, left_out: Collection[str] = frozenset()
) -> dict[str, Any]:
    """Prompts whose number of correct samples changed, the greatest change first."""
    known = {prompt.key: prompt for prompt in before.prompts if prompt.num_samples}
    pairs = [(known[now.key], now) for now in after.prompts if now.num_samples and now.key in known]
    pairs = [(then, now) for then, now in pairs if now.key not in left_out]
    changes = [_share(now) - _share(then) for then, now in pairs]
    texts_before, texts_after = before.texts(), after.texts()
    rows: list[dict[str, Any]] = [
        {
            "key": now.key,
            "before": [then.num_correct, then.num_samples],
            "after": [now.num_correct, now.num_samples],
            "change": finite(change),
            "text_before": texts_before.get(now.key),
            "text_after": texts_after.get(now.key),
        }
        for (then, now), change in zip(pairs, changes, strict=True)
        if change
    ]
    rows.sort(key=lambda row: -abs(row["change"]))
    least = min((min(then.num_samples, now.num_samples) for then, now in pairs), default=1)
    return {
        "num_compared": len(pairs),
        "num_better": sum(change > 0 for change in changes),
        "num_worse": sum(change < 0 for change in changes),
        "difference": [finite(value) for value in paired_interval(changes, least)],
        "rows": rows[:MAX_CHANGES],
    }


def _share(prompt: PromptResult) -> float:
    return prompt.num_correct / prompt.num_samples


def outcome_of(row: EvalCompletionRow) -> dict[str, Any]:
    return {
        "ordinal": row.ordinal,
        "sample": row.sample,
        "reward": finite(row.reward),
        "is_correct": row.is_correct,
        "is_cut_off": row.finish_reason == "length",
        "completion": row.completion[:2000],
        "num_tokens": len(row.token_ids),
    }

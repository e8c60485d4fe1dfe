"""The settings that a what-if may change: those that affect how a step turns its batch into new weights.

The batches are recorded. Settings that determined their texts, tokens, rewards and shape cannot be changed.
"""

from collections.abc import Sequence

from freerun.config.changes import changes_between
from freerun.config.load import key_types, nearest_keys
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError

GENERATED = "decides what was generated, and the batches are recorded"
SHAPE = "decides which groups are in a batch, and the batches are recorded"
REWARDS = "decides the rewards, and they are recorded"
BEGINNING = "decides what version 0 is"
NO_EFFECT = "changes nothing of what a step makes of its batch"
FORK = '"freerun fork" continues with live engines and other settings'
OTHER_RUN = "start another run"
REFUSED_KEYS = {"train.prompts_per_step": (SHAPE, OTHER_RUN), "objective.dynamic_sampling": (SHAPE, FORK)}
REFUSED_SECTIONS = {
    "model": (BEGINNING, OTHER_RUN),
    "lora": (BEGINNING, OTHER_RUN),
    "sft": (BEGINNING, OTHER_RUN),
    "data": (GENERATED, OTHER_RUN),
    "sampling": (GENERATED, FORK),
    "rollout": (GENERATED, FORK),
    "gateway": (GENERATED, FORK),
    "online": (GENERATED, FORK),
    "engine": (GENERATED, FORK),
    "buffer": (SHAPE, FORK),
    "reward": (REWARDS, '"freerun regrade" says which would change, "freerun fork" continues with them'),
}
"""Reason and alternative for each refused section; a section neither here nor allowed changes nothing."""
SETTABLE = ("objective", "train")


def read_changes(given: Sequence[str]) -> list[str]:
    """`key=value` as overrides of a recipe; raises for keys that a what-if cannot change."""
    overrides = []
    for change in given:
        key, has_value, value = change.partition("=")
        if not has_value:
            raise ConfigError(f"config: --set {change} names no value; write --set objective.clip_high=0.1")
        _check_key(key.strip())
        overrides.append(f"--{key.strip()}={value.strip()}")
    return overrides


def _check_key(key: str) -> None:
    if key not in key_types():
        near = nearest_keys(key)
        hint = f'did you mean "{near[0]}"?' if near else '"freerun train --help" lists all keys'
        raise ConfigError(f'config: unknown key "{key}" in --set; {hint}')
    if (refusal := _refusal(key)) is not None:
        why, instead = refusal
        raise ConfigError(f"config: --set {key} cannot be tried on recorded batches: it {why}; {instead}")


def _refusal(key: str) -> tuple[str, str] | None:
    """Why a key cannot be changed, and the alternative; None if it can."""
    section = key.split(".")[0]
    if section in SETTABLE and key not in REFUSED_KEYS:
        return None
    return REFUSED_KEYS.get(key) or REFUSED_SECTIONS.get(section, (NO_EFFECT, "leave it out"))


def check_presets(before: Recipe, after: Recipe) -> None:
    """Raise if a preset changes settings that may not be changed."""
    for change in changes_between(before, after):
        if (refusal := _refusal(change.key)) is not None:
            raise ConfigError(
                f'config: --set objective.preset="{after.objective.preset}" makes it {change}, which '
                f"{refusal[0]}; set what else you want of the preset key by key"
            )


def check_start(
    before: Recipe, after: Recipe, *, start: int, has_reference: bool, instead: str = "use --from 1"
) -> None:
    """Raise for what must have existed from version 0 on; `start` is the version at which the change begins."""
    if start and before.objective.has_critic != after.objective.has_critic:
        raise ConfigError(
            f'config: objective.advantage = "{after.objective.advantage}" instead of '
            f'"{before.objective.advantage}" adds or removes a critic, and a critic learns from version 0 on; '
            f"{instead}"
        )
    if start and after.objective.kl_coefficient > 0 and not has_reference:
        raise ConfigError(
            f"config: objective.kl_coefficient = {after.objective.kl_coefficient} needs the policy of version 0, "
            f"and the run was trained without a KL term; {instead}"
        )

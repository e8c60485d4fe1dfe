"""What is maximised: one loss with a few independent choices, and the named rows of its table.

    advantage x ratio x clip x correction x aggregation  (+ KL to a reference, entropy, a critic)

`PRESETS` holds the published algorithms as such rows; the equations and where they deviate from their papers
are in docs/objectives.md. In every preset the "old policy" of the paper is the proximal policy (the weights at
the start of the step), and staleness is corrected by the behaviour weight beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import COEFFICIENT, FACTOR, SHARE, SHARE_ABOVE_NONE, Range, require, require_ranges

GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce++")
SCALED_ESTIMATORS = ("global", "grpo", "reinforce++")


@dataclass(frozen=True)
class ObjectiveConfig:
    preset: Literal[
        "areal",
        "ppo",
        "grpo",
        "dr-grpo",
        "rloo",
        "reinforce++",
        "dapo",
        "gspo",
        "cispo",
        "sapo",
        "m2po",
        "icepop",
    ] = "areal"
    """A published algorithm: it sets all keys below that are not written themselves. On the command line it
    replaces the recipe's whole section. docs/objectives.md has the table; the defaults shown here are areal's."""
    advantage: Literal["global", "grpo", "dr_grpo", "rloo", "reinforce++", "gae"] = "global"
    """What a reward is compared with. global: mean and deviation of the batch (the paper); grpo: of the group;
    dr_grpo: the group's mean only; rloo: the mean of the others in the group; reinforce++: the group's mean, then
    the batch's deviation; gae: the values of a critic."""
    advantage_normalisation: Literal["trajectory", "token"] = "trajectory"
    """global, grpo, reinforce++: whether mean and deviation count each completion once, or each of its tokens (as
    AReaL's code does), which weighs long completions more. gae always normalises over tokens."""
    ratio: Literal["token", "sequence"] = "token"
    """Whether ratio and behaviour weight belong to each token, or to the completion (geometric mean, GSPO)."""
    clip: Literal["ppo", "dual", "cispo", "sapo", "none"] = "ppo"
    """What limits a ratio. ppo: no gain outside the clip; dual: ppo, and a floor for negative advantages; cispo:
    the clipped ratio is a constant weight of the logprob; sapo: a smooth gate; none: nothing."""
    clip_low: float = 0.2
    """ppo, dual, cispo: the ratio is clipped below 1 - clip_low; 1 leaves it free."""
    clip_high: float = 0.2
    """ppo, dual, cispo: the ratio is clipped above 1 + clip_high."""
    dual_clip: float = 3.0
    """dual: with a negative advantage A a token's gain is not below dual_clip x A."""
    sapo_positive: float = 1.0
    """sapo: temperature of the gate for positive advantages; higher closes it sooner."""
    sapo_negative: float = 1.05
    """sapo: temperature of the gate for the other advantages."""
    correction: Literal["decoupled", "truncated", "masked", "m2po", "none"] = "decoupled"
    """How staleness is corrected. decoupled: weigh by proximal / behaviour (Eq. 5); truncated: by that, capped
    (TIS); masked: leave out tokens whose weight is outside a range (IcePop); m2po: of the tokens that moved the
    way their advantage pushes, leave out the largest weights of the step until the rest has a small second
    moment; none: the ratio is taken against the behaviour itself."""
    weight_cap: float = 2.0
    """truncated: the largest behaviour weight."""
    weight_low: float = 0.5
    """masked: smallest behaviour weight that is trained on."""
    weight_high: float = 5.0
    """masked: largest behaviour weight that is trained on."""
    m2_threshold: float = 0.04
    """m2po: bound on the mean of (log behaviour weight)^2 over the tokens of the step that moved the way their
    advantage pushes and are trained on."""
    aggregation: Literal["token", "sequence", "fixed"] = "token"
    """token: mean over the step's completion tokens; sequence: mean over each completion, then over completions;
    fixed: sum over (completions x sampling.max_completion_tokens), which favours no length (Dr. GRPO)."""
    kl_coefficient: float = 0.0
    """Weight of the KL divergence (k3) from the policy at version 0; above 0 the trainer holds a frozen copy."""
    entropy_coefficient: float = 0.0
    """Weight of the bonus for the entropy of the token distributions."""
    dynamic_sampling: bool = False
    """Leave out groups whose rewards are all equal and sample others in their place (DAPO)."""
    gae_gamma: float = 1.0
    """gae: discount per token."""
    gae_lambda: float = 1.0
    """gae: 1 trusts the sampled return, 0 the critic's value of the next token."""
    value_coefficient: float = 0.1
    """gae: weight of the critic's squared error."""
    value_lr_scale: float = 10.0
    """gae: learning rate of the critic's head as a multiple of the policy's; it starts from nothing."""

    def __post_init__(self) -> None:
        require_ranges(
            "objective",
            self,
            clip_low=SHARE_ABOVE_NONE,
            clip_high=FACTOR,
            dual_clip=Range(1, 1e9, excludes_low=True),
            sapo_positive=FACTOR,
            sapo_negative=FACTOR,
            weight_cap=Range(1, 1e9),
            weight_high=FACTOR,
            m2_threshold=FACTOR,
            kl_coefficient=COEFFICIENT,
            entropy_coefficient=COEFFICIENT,
            gae_gamma=SHARE_ABOVE_NONE,
            gae_lambda=SHARE,
            value_coefficient=FACTOR,
            value_lr_scale=FACTOR,
        )
        require(
            0 <= self.weight_low < 1 < self.weight_high,
            f"objective.weight_low = {self.weight_low} and objective.weight_high = {self.weight_high} "
            "must enclose 1 (on-policy)",
        )
        self._check_sequence_ratio()
        self._check_normalisation()

    def _check_sequence_ratio(self) -> None:
        if self.ratio == "token":
            return
        require(
            self.correction != "m2po",
            'objective.correction = "m2po" leaves out single tokens, objective.ratio = "sequence" has one weight '
            'per completion; set objective.ratio = "token" or objective.correction = "masked"',
        )
        require(
            self.advantage != "gae",
            'objective.advantage = "gae" differs from token to token, objective.ratio = "sequence" needs one '
            'advantage per completion; set objective.ratio = "token" or another advantage',
        )

    def _check_normalisation(self) -> None:
        require(
            self.advantage_normalisation == "trajectory" or self.advantage in SCALED_ESTIMATORS,
            f'objective.advantage_normalisation = "{self.advantage_normalisation}" needs objective.advantage = '
            f'"global", "grpo" or "reinforce++", not "{self.advantage}"',
        )

    @property
    def compares_within_groups(self) -> bool:
        return self.advantage in GROUP_ESTIMATORS or self.dynamic_sampling

    @property
    def has_critic(self) -> bool:
        return self.advantage == "gae"

    @property
    def uses_proximal(self) -> bool:
        return self.correction != "none"

    @property
    def decides_over_the_step(self) -> bool:
        """Whether all tokens must be seen under the proximal policy before the first of them is trained on."""
        return self.has_critic or self.correction == "m2po"

    @property
    def moves_without_advantage(self) -> bool:
        """Whether a trajectory of advantage 0 has a gradient."""
        return self.has_critic or self.kl_coefficient > 0 or self.entropy_coefficient > 0


PRESETS = {
    preset.preset: preset
    for preset in (
        ObjectiveConfig(preset="areal"),
        ObjectiveConfig(preset="ppo", advantage="gae"),
        ObjectiveConfig(preset="grpo", advantage="grpo", aggregation="sequence"),
        ObjectiveConfig(preset="dr-grpo", advantage="dr_grpo", aggregation="fixed"),
        ObjectiveConfig(preset="rloo", advantage="rloo", clip="none", aggregation="fixed"),
        ObjectiveConfig(preset="reinforce++", advantage="reinforce++"),
        ObjectiveConfig(preset="dapo", advantage="grpo", clip_high=0.28, dynamic_sampling=True),
        ObjectiveConfig(
            preset="gspo",
            advantage="grpo",
            ratio="sequence",
            clip_low=3e-4,
            clip_high=4e-4,
            aggregation="sequence",
        ),
        ObjectiveConfig(
            preset="cispo", advantage="grpo", clip="cispo", clip_low=1.0, clip_high=4.0, correction="none"
        ),
        ObjectiveConfig(preset="sapo", advantage="grpo", clip="sapo", aggregation="sequence"),
        ObjectiveConfig(preset="m2po", advantage="grpo", clip="none", correction="m2po"),
        ObjectiveConfig(preset="icepop", advantage="grpo", correction="masked", aggregation="sequence"),
    )
}

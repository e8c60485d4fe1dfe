"""What is maximised: one loss with a few independent choices, and the published algorithms as rows over them.

    advantage x ratio x clip x correction x aggregation  (+ KL to a reference, entropy, a critic)

`AXES` holds the built-in functions of each choice, `PRESETS` the published algorithms. docs/objectives.md has the
equations and how they differ from their papers. In every preset the paper's "old policy" is the proximal policy
(the weights at the start of the step); a separate behaviour weight corrects for staleness.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from freerun.config.section import Section, require
from freerun.config.user_code import is_user_code, split_name
from freerun.config.values import Coefficient, Factor, Share, ShareAboveZero, did_you_mean
from freerun.errors import ConfigError

Level = Literal["token", "sequence"]


@dataclass(frozen=True)
class BuiltIn:
    """A named function of an axis, and what must be known of it without torch."""

    function: str
    """Its name in the module of its axis, `freerun.trainer.<axis>`, which only the trainer imports."""
    compares_within_groups: bool = False
    undivided: str = ""
    """For an advantage divided by a deviation, which `advantage_normalisation` changes: the one without it."""


AXES = {
    "advantage": {
        "global": BuiltIn("over_batch", undivided="centred_on_batch"),
        "grpo": BuiltIn("over_group", compares_within_groups=True, undivided="centred"),
        "dr_grpo": BuiltIn("centred", compares_within_groups=True),
        "rloo": BuiltIn("leave_one_out", compares_within_groups=True),
        "reinforce++": BuiltIn("centred_over_batch", compares_within_groups=True, undivided="centred"),
        "gae": BuiltIn("left_to_critic"),
    },
    "clip": {
        "ppo": BuiltIn("ppo"),
        "dual": BuiltIn("dual"),
        "cispo": BuiltIn("cispo"),
        "sapo": BuiltIn("sapo"),
        "none": BuiltIn("unclipped"),
    },
    "correction": {
        "decoupled": BuiltIn("decoupled"),
        "truncated": BuiltIn("truncated"),
        "masked": BuiltIn("masked"),
        "m2po": BuiltIn("decoupled"),
        "none": BuiltIn("uncorrected"),
    },
    "aggregation": {
        "token": BuiltIn("over_tokens"),
        "sequence": BuiltIn("over_sequences"),
        "fixed": BuiltIn("over_fixed_length"),
    },
}
"""Built-in functions by key and name. Each key also takes a user's "module:function" (`trainer/axes.py`)."""

_ROWS: dict[str, dict[str, Any]] = {
    "areal": {},
    "ppo": {"advantage": "gae"},
    "grpo": {"advantage": "grpo", "aggregation": "sequence"},
    "dr-grpo": {"advantage": "dr_grpo", "aggregation": "fixed"},
    "rloo": {"advantage": "rloo", "clip": "none", "aggregation": "fixed"},
    "reinforce++": {"advantage": "reinforce++"},
    "dapo": {"advantage": "grpo", "clip_high": 0.28, "dynamic_sampling": True},
    "gspo": {
        "advantage": "grpo", "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence",
    },
    "cispo": {"advantage": "grpo", "clip": "cispo", "clip_low": 1.0, "clip_high": 4.0, "correction": "none"},
    "sapo": {"advantage": "grpo", "clip": "sapo", "aggregation": "sequence"},
    "m2po": {"advantage": "grpo", "clip": "none", "correction": "m2po"},
    "icepop": {"advantage": "grpo", "correction": "masked", "aggregation": "sequence"},
}  # fmt: skip
"""What each preset changes of the defaults."""

if TYPE_CHECKING:
    Preset = str
else:
    Preset = Literal[*_ROWS]


@dataclass(frozen=True)
class ObjectiveConfig(Section, name="objective"):
    preset: Preset = "areal"
    """A published algorithm: it sets every key below that is not set explicitly. On the command line it replaces
    the recipe's whole section. docs/objectives.md has the table; the defaults shown here are areal's."""
    advantage: str = "global"
    """What a reward is compared with. global: mean and deviation of the batch (the paper); grpo: of the group;
    dr_grpo: the group's mean only; rloo: the mean of the others in the group; reinforce++: the group's mean, then
    the batch's deviation; gae: the values of a critic. Or your own function, "module:function"."""
    advantage_normalisation: Literal["trajectory", "token"] = "trajectory"
    """global, grpo, reinforce++: whether mean and deviation count each completion once, or each of its tokens (as
    AReaL's code does), which gives long completions more weight. gae always normalises over tokens."""
    turn_discount: ShareAboveZero = 1.0
    """Sessions of several calls: how much a call shares in what the next one earns. At 1, and without rewards per
    turn, every call has the session's advantage. Below 1, or with rewards per turn, each call is compared by what
    followed from it, and a deviation is always that of the batch."""
    ratio: Level = "token"
    """Whether ratio and behaviour weight are per token, or per completion (geometric mean, GSPO). Each call
    of a session is a completion here."""
    clip: str = "ppo"
    """What limits a ratio. ppo: no gain outside the clip; dual: ppo, with a floor for negative advantages; cispo:
    the clipped ratio is a constant weight of the logprob; sapo: a smooth gate; none: no limit. Or your own
    function, "module:function"."""
    clip_low: ShareAboveZero = 0.2
    """ppo, dual, cispo: the ratio is clipped below 1 - clip_low; 1 leaves it free."""
    clip_high: Factor = 0.2
    """ppo, dual, cispo: the ratio is clipped above 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1, le=1e9)] = 3.0
    """dual: with a negative advantage A a token's gain is not below dual_clip x A."""
    correction: str = "decoupled"
    """How staleness is corrected. decoupled: weigh by proximal / behaviour (Eq. 5); truncated: by that, capped
    (TIS); masked: leave out tokens whose weight is outside a range (IcePop); m2po: of the tokens that moved the
    way their advantage pushes, leave out the largest weights of the step until the rest has a small second
    moment; none: take the ratio against the behaviour policy itself. Or your own function, "module:function"."""
    weight_cap: Annotated[float, Meta(ge=1, le=1e9)] = 2.0
    """truncated: the largest behaviour weight."""
    weight_low: Coefficient = 0.5
    """masked: smallest behaviour weight that is trained on."""
    weight_high: Factor = 5.0
    """masked: largest behaviour weight that is trained on."""
    aggregation: str = "token"
    """token: mean over the step's completion tokens; sequence: mean over each completion, then over completions;
    fixed: sum over (completions x sampling.max_completion_tokens), which favours no length (Dr. GRPO). A session
    counts as one completion. Or your own function, "module:function"."""
    kl_coefficient: Coefficient = 0.0
    """Weight of the KL divergence (k3) from the policy at version 0; above 0 the trainer holds a frozen copy."""
    entropy_coefficient: Coefficient = 0.0
    """Weight of the bonus for the entropy of the token distributions."""
    dynamic_sampling: bool = False
    """Leave out groups whose rewards are all equal and sample others in their place (DAPO)."""
    gae_gamma: ShareAboveZero = 1.0
    """gae: discount per token."""
    gae_lambda: Share = 1.0
    """gae: 1 trusts the sampled return, 0 the critic's value of the next token."""
    value_coefficient: Factor = 0.1
    """gae: weight of the critic's squared error."""
    value_lr_scale: Factor = 10.0
    """gae: learning rate of the critic's head as a multiple of the policy's; it starts from nothing."""

    def check(self) -> None:
        require(
            0 <= self.weight_low < 1 < self.weight_high,
            f"objective.weight_low = {self.weight_low} and objective.weight_high = {self.weight_high} "
            "must enclose 1 (on-policy)",
        )
        for axis in AXES:
            self._check_axis(axis)
        self._check_sequence_ratio()
        require(
            self.advantage_normalisation == "trajectory" or self._may_normalise,
            f'objective.advantage_normalisation = "{self.advantage_normalisation}" needs objective.advantage = '
            f'"global", "grpo" or "reinforce++", not "{self.advantage}"',
        )

    def _check_axis(self, axis: str) -> None:
        key, name, names = f"objective.{axis}", getattr(self, axis), AXES[axis]
        if is_user_code(name):
            split_name(name, setting=key)
        elif name not in names:
            listed = ", ".join(f'"{built_in}"' for built_in in names)
            raise ConfigError(
                f'config: {key} = "{name}" must be one of {listed}, or your own "module:function"'
                f"{did_you_mean(name, names)}"
            )

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

    def function(self, axis: str) -> str:
        """The function of an axis as "module:function"."""
        name: str = getattr(self, axis)
        return name if is_user_code(name) else f"freerun.trainer.{axis}:{AXES[axis][name].function}"

    def is_users(self, axis: str) -> bool:
        return is_user_code(getattr(self, axis))

    @property
    def undivided_advantage(self) -> str:
        """The advantage without its deviation, as "module:function"; a user's function is taken as it is."""
        undivided = self._advantage.undivided
        return f"freerun.trainer.advantage:{undivided}" if undivided else self.function("advantage")

    @property
    def divides_by_deviation(self) -> bool:
        """Whether a built-in advantage does; what a user's function does is unknown."""
        return bool(self._advantage.undivided)

    @property
    def _may_normalise(self) -> bool:
        return self.divides_by_deviation or self.is_users("advantage")

    @property
    def _advantage(self) -> BuiltIn:
        """A user's function takes groups of any size."""
        return AXES["advantage"].get(self.advantage) or BuiltIn(self.advantage)

    @property
    def compares_within_groups(self) -> bool:
        return self._advantage.compares_within_groups or self.dynamic_sampling

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
    def leaves_out_tokens(self) -> bool:
        """Whether the correction may give a token weight 0 on purpose."""
        return self.correction in ("masked", "m2po") or self.is_users("correction")


PRESETS = {name: ObjectiveConfig(preset=name, **row) for name, row in _ROWS.items()}

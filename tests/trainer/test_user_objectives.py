"""A user's functions as parts of the objective: equal to built-in ones that compute the same, or refused."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documented_commands import ROOT, blocks
from training_batches import config, make_groups, make_trainer, replace, same_bits, tiny_decoder, weights_of

from freerun.config.objective import AXES, PRESETS, ObjectiveConfig
from freerun.errors import ConfigError
from freerun.trainer.axes import PARAMETERS, axis_function, load_axes, moves_without_advantage
from freerun.types import Reward

NUMBERS = itertools.count()
OWN = "own_objective"
"""Of tests/support."""


@pytest.fixture(autouse=True)
def in_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def write_module(source: str) -> str:
    """A module of the user's; each has its own name, because Python imports a name once."""
    name = f"my_objective_{next(NUMBERS)}"
    Path(f"{name}.py").write_text(source)
    return name


def objective_of(names: dict[str, Any]) -> ObjectiveConfig:
    return ObjectiveConfig(**names)


def trained(objective: ObjectiveConfig) -> tuple[dict[str, Any], dict[str, float]]:
    """Weights and metrics of two steps in which some rewards are equal and every part of the objective acts."""
    model = tiny_decoder()
    trainer = make_trainer(model, config(num_minibatches=3), objective)
    groups = replace(make_groups(), reward=lambda t: Reward(1.0, True) if t.prompt.ordinal == 0 else t.reward)
    trainer.step(groups)
    metrics = trainer.step(groups).metrics
    return weights_of(model), {name: metrics[name] for name in ("loss", "clip_fraction", "grad_norm")}


def test_functions_from_outside_equal_the_built_in_ones_they_repeat_bit_for_bit() -> None:
    weights, metrics = trained(objective_of({axis: f"{OWN}:{axis}" for axis in AXES}))
    expected_weights, expected_metrics = trained(ObjectiveConfig(advantage="grpo"))
    assert same_bits(weights, expected_weights)
    assert metrics == expected_metrics
    assert metrics["clip_fraction"] > 0


def test_the_example_of_the_documentation_trains() -> None:
    (source,) = blocks(ROOT / "docs" / "objectives.md", "python")
    Path("my_objective.py").write_text(source)
    assert len([line for line in source.splitlines() if line]) <= 12
    objective = ObjectiveConfig(advantage="my_objective:leave_one_out", clip="my_objective:soft_clip")
    weights, metrics = trained(objective)
    assert not same_bits(weights, weights_of(tiny_decoder()))
    assert metrics["grad_norm"] > 0
    groups = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 2.0])]
    lengths = [np.array([1, 2, 3]), np.array([4, 5])]
    advantages, expected = (
        axis_function(objective, "advantage")(groups, lengths, objective)
        for objective in (objective, PRESETS["rloo"])
    )
    assert np.concatenate(advantages) == pytest.approx(np.concatenate(expected))


def test_a_trajectory_without_advantage_is_computed_unless_the_users_clip_says_it_needs_not() -> None:
    assert not any(moves_without_advantage(ObjectiveConfig(clip=name)) for name in AXES["clip"])
    assert moves_without_advantage(ObjectiveConfig(clip=f"{OWN}:cautious_clip"))
    assert not moves_without_advantage(ObjectiveConfig(clip=f"{OWN}:clip"))
    assert moves_without_advantage(ObjectiveConfig(clip=f"{OWN}:clip", kl_coefficient=0.1))


def test_a_users_function_is_not_called_by_a_rank_without_tokens() -> None:
    name = write_module("def clip(r, p, a, o): raise ValueError\n\ndef correction(w, o): raise ValueError")
    objective = ObjectiveConfig(clip=f"{name}:clip", correction=f"{name}:correction")
    nothing = torch.empty(0, requires_grad=True)
    gains, _ = axis_function(objective, "clip")(nothing, nothing, nothing, objective)
    assert gains.requires_grad
    assert gains.shape == axis_function(objective, "correction")(nothing, objective).shape == (0,)


@pytest.mark.parametrize("axis", AXES)
def test_every_built_in_takes_the_documented_parameters(axis: str) -> None:
    for name in AXES[axis]:
        load_axes(objective_of({axis: name}))
    own = write_module(f"def own({', '.join(PARAMETERS[axis])}): ...")
    load_axes(objective_of({axis: f"{own}:own"}))


@pytest.mark.parametrize("axis", AXES)
def test_a_function_that_cannot_be_used_is_refused_with_key_value_and_remedy(axis: str) -> None:
    name = write_module("def takes_one(x): ...\n\nnumber = 3")
    for function, message in (
        ("takes_one", rf'"{name}:takes_one" cannot be called with its arguments.*define it as def takes_one\('),
        ("number", f'"{name}:number" is a int, not a function'),
        ("missing", f'"{name}:missing": .* has no function "missing"; it has takes_one'),
    ):
        with pytest.raises(ConfigError, match=f"config: objective.{axis}: {message}"):
            make_trainer(tiny_decoder(), objective=objective_of({axis: f"{name}:{function}"}))
    with pytest.raises(ConfigError, match=f'objective.{axis}: "nowhere:f": importing nowhere failed'):
        load_axes(objective_of({axis: "nowhere:f"}))
    with pytest.raises(ConfigError, match=f'objective.{axis}: "mine.py:f" names a file'):
        objective_of({axis: "mine.py:f"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def advantage(r, l, o): return None", "return one array per group"),
        ("def advantage(r, l, o): return r[1:]", "arrays of shapes .* return one array per group"),
        (
            "def advantage(r, l, o): return [g + float('nan') for g in r]",
            "NaN or infinity; return finite advantages",
        ),
        ("def clip(r, p, a, o): return r * a", "return gains, is_clipped"),
        ("def clip(r, p, a, o): return (r * a).sum(), None", r"gains of shape \[\].*return a tensor of shape"),
        ("def clip(r, p, a, o): return r.detach() * a, None", "gains without a gradient"),
        ("def clip(r, p, a, o): return r * a / 0, None", "gains that are NaN or infinite for .* tokens"),
        ("def clip(r, p, a, o): return r * a, r", "is_clipped of shape .*torch.bool"),
        ("def clip(r, p, a, o): return 3, None", "gains as int; return a tensor of shape"),
        ("def correction(w, o): return w[:1]", "weights of shape .*return a tensor of shape"),
        ("def correction(w, o): return -w.exp()", "weights below 0; return 0 to leave a token out"),
        ("def aggregation(n, m, o): return [1.0]", "return one number for each of the .* samples"),
    ],
)
def test_a_result_that_cannot_be_trained_on_is_refused(source: str, message: str) -> None:
    axis = source.removeprefix("def ").partition("(")[0]
    name = f"{write_module(source)}:{axis}"
    trainer = make_trainer(tiny_decoder(), objective=objective_of({axis: name}))
    before = weights_of(tiny_decoder())
    with pytest.raises(ConfigError, match=f'config: objective.{axis}: "{name}" returned .*{message}'):
        trainer.step(make_groups())
    assert same_bits(weights_of(trainer.model), before)

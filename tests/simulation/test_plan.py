"""The planner: five constructed cases whose limit is known, splits that fit, and a choice near the best."""

from dataclasses import replace

import msgspec
import pytest
from simulated_setups import make_recipe, make_setup

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.errors import FreerunError
from freerun.simulation.costs import LinearEngine, LinearTrainer, WeightCosts
from freerun.simulation.hardware import GPUS, Gpu
from freerun.simulation.plan import ClusterPlan, Considered, Limit, consider_setup, gains_of, make_plan
from freerun.simulation.plan_text import describe, describe_limit
from freerun.simulation.run import Setup, simulate
from freerun.simulation.shapes import MODEL_SHAPES
from freerun.simulation.splits import (
    GpuSplit,
    Machine,
    candidates,
    num_published,
    published_bytes,
    setup_of,
    split_of,
    trainer_bytes,
)
from freerun.simulation.workload import guess_workload

H100 = Machine(GPUS["h100"], "h100", MODEL_SHAPES["qwen2.5-1.5b"])
RECIPE = Recipe(
    sampling=SamplingConfig(group_size=8, max_completion_tokens=2048),
    engine=EngineConfig(backend="vllm", num_workers=6, num_slots=64, cache_tokens=100_000),
    train=TrainConfig(num_steps=50, prompts_per_step=16, num_ranks=2, dtype="bfloat16"),
)
FAST_TRAINER = LinearTrainer(step=0.05, token=1e-7)
FAST_ENGINE = LinearEngine(step=1e-4, sequence=1e-6, cached_token=0.0, prefill_token=0.0)
SLOW_ENGINE = LinearEngine(step=0.01, sequence=2e-3, cached_token=0.0, prefill_token=1e-6)
CASES: dict[Limit, Setup] = {
    # Every sequence costs: only more engines share them.
    "generation": make_setup(
        recipe=make_recipe(buffer=BufferConfig(max_staleness=6)),
        engine_costs=SLOW_ENGINE,
        trainer_costs=FAST_TRAINER,
    ),
    "training": make_setup(engine_costs=FAST_ENGINE, trainer_costs=LinearTrainer(step=0.1, token=2e-3)),
    # A step takes as long with one sequence as with many: only more of them under way help.
    "bound": make_setup(
        recipe=make_recipe(
            buffer=BufferConfig(max_staleness=1),
            engine=EngineConfig(num_workers=2, num_slots=512, cache_tokens=500_000),
        ),
        engine_costs=LinearEngine(step=0.02, sequence=0.0, cached_token=0.0, prefill_token=0.0),
        trainer_costs=FAST_TRAINER,
    ),
    "loads": make_setup(engine_costs=FAST_ENGINE, trainer_costs=FAST_TRAINER, weights=WeightCosts(0.2, 0.5, 3.0)),
    "graders": make_setup(engine_costs=FAST_ENGINE, trainer_costs=FAST_TRAINER, grade_seconds=0.5),
}


@pytest.mark.parametrize("limit", CASES)
def test_the_limit_is_named_right_in_a_constructed_case(limit: Limit) -> None:
    setup = CASES[limit]
    outcome = simulate(setup)
    best = Considered(GpuSplit(2, 1, 1), outcome.tokens_per_second, outcome, setup)
    plan = ClusterPlan(best, (), None, gains_of(setup, outcome), ())
    assert plan.limit == limit, plan.gains
    words = {"bound": "the staleness bound", "loads": "weights"}
    assert describe_limit(plan).startswith(words.get(limit, limit))


@pytest.mark.parametrize(("backend", "num_tokens"), [("native", 512), ("vllm", 8192)])
def test_a_simulated_engine_computes_as_many_prompt_tokens_beside_decoding_as_its_backend(
    backend: str, num_tokens: int
) -> None:
    recipe = replace(RECIPE, engine=replace(RECIPE.engine, backend=backend))
    setup = setup_of(recipe, H100, split_of(recipe), guess_workload(recipe))
    assert setup.recipe.engine.prefill_chunk_tokens == num_tokens


def test_a_balanced_run_has_no_single_limit() -> None:
    outcome = simulate(make_setup())
    best = Considered(GpuSplit(2, 1, 1), outcome.tokens_per_second, outcome, make_setup())
    plan = ClusterPlan(best, (), None, dict.fromkeys(CASES, 1.02), ())
    assert plan.limit is None
    assert describe_limit(plan).startswith("nothing alone")


def test_every_candidate_uses_all_gpus_and_fits() -> None:
    found = candidates(RECIPE, H100, 16)
    assert len(found) > 15
    assert {split.num_gpus for split in found} == {16}
    large = Machine(GPUS["h100"], "h100", MODEL_SHAPES["qwen2.5-32b"])
    assert {split.gpus_per_engine for split in candidates(RECIPE, large, 64)} == {2, 4, 8}
    assert min(split.num_trainer_gpus for split in candidates(RECIPE, large, 64)) > 8


def test_what_cannot_fit_is_refused_with_what_to_change() -> None:
    large = Machine(GPUS["h100"], "h100", MODEL_SHAPES["qwen2.5-32b"])
    with pytest.raises(FreerunError, match=r"train\.micro_batch_tokens = 2048"):
        candidates(RECIPE, large, 4)
    with pytest.raises(FreerunError, match="at least one GPU each"):
        candidates(RECIPE, H100, 1)
    tiny = Machine(replace_memory(10e9), "small", MODEL_SHAPES["qwen2.5-32b"])
    with pytest.raises(FreerunError, match="take a larger GPU"):
        candidates(RECIPE, tiny, 64)


def replace_memory(num_bytes: float) -> Gpu:
    return msgspec.structs.replace(GPUS["h100"], memory_bytes=num_bytes, gpus_per_node=2)


def test_an_adapter_takes_less_memory_and_publishes_less() -> None:
    adapted = replace(RECIPE, lora=LoraConfig(rank=8))
    assert num_published(adapted, H100.shape) < num_published(RECIPE, H100.shape) / 100
    assert trainer_bytes(adapted, H100.shape, 4) < trainer_bytes(RECIPE, H100.shape, 4)


def test_weights_travel_in_the_dtype_of_the_engines_and_adapters_in_float32() -> None:
    rounded = replace(RECIPE, engine=replace(RECIPE.engine, dtype="bfloat16"))
    assert published_bytes(RECIPE, H100.shape) == 4 * H100.shape.num_parameters
    assert published_bytes(rounded, H100.shape) == 2 * H100.shape.num_parameters
    loads = [setup_of(r, H100, split_of(r), guess_workload(r)).weights.load_seconds for r in (RECIPE, rounded)]
    assert loads[1] == pytest.approx(loads[0] / 2)
    adapted = replace(rounded, lora=LoraConfig(rank=8))
    assert published_bytes(adapted, H100.shape) == 4 * num_published(adapted, H100.shape)


def test_activations_that_are_computed_again_take_less_memory() -> None:
    again = replace(RECIPE, train=replace(RECIPE.train, recompute_activations=True))
    assert trainer_bytes(again, H100.shape, 4) < trainer_bytes(RECIPE, H100.shape, 4)


@pytest.fixture(scope="module")
def small_plan() -> ClusterPlan:
    return make_plan(RECIPE, H100, guess_workload(RECIPE, mean=500), 8)


def test_a_plan_says_everything_and_never_without_its_error(small_plan: ClusterPlan) -> None:
    workload = guess_workload(RECIPE, mean=500)
    text = describe(small_plan, RECIPE, H100, workload, price=2.5)
    parts = [
        "8 x h100", "tokens/s", "staleness", "<- best", "your recipe", "limited by:", "what would help",
        "a step costs", "memory: trainer about", "$", "25 % either way", "Nothing is said about what is learned",
    ]  # fmt: skip
    for said in parts:
        assert said in text, text
    assert small_plan.own is not None
    assert small_plan.own.split == split_of(RECIPE)
    assert small_plan.best.tokens_per_second >= small_plan.own.tokens_per_second


@pytest.mark.slow
def test_the_chosen_split_is_near_the_best_of_all(small_plan: ClusterPlan) -> None:
    workload = guess_workload(RECIPE, mean=500)
    everything = [
        consider_setup(RECIPE, split, setup_of(RECIPE, H100, split, workload)).tokens_per_second
        for split in candidates(RECIPE, H100, 8)
    ]
    assert small_plan.best.tokens_per_second >= 0.95 * max(everything)


def test_a_guess_says_that_it_is_one_and_impossible_lengths_are_refused() -> None:
    assert "a guess" in guess_workload(RECIPE).words
    assert "a guess" not in guess_workload(RECIPE, mean=500).words
    with pytest.raises(FreerunError, match=r"--lengths 5000 .* sampling\.max_completion_tokens = 2048"):
        guess_workload(RECIPE, mean=5000)
    with pytest.raises(FreerunError, match="--likeness 2"):
        guess_workload(RECIPE, mean=500, likeness=2)


def test_graders_are_part_of_a_plan_that_knows_their_time() -> None:
    setup = make_setup(recipe=make_recipe(reward=RewardConfig(grader="exact", num_workers=1)), grade_seconds=0.1)
    assert "graders" in gains_of(setup, simulate(setup))

"""Which device a worker takes; that every tensor gets there; and what a plan says of it.

There is no GPU here: `fake_gpu.py` says what stands in for one, and what that proves.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import GPU, FakeGPU
from tiny_models import Letters, make_request, random_model
from tiny_runs import make_run, recipe_of
from training_batches import config, make_groups, make_trainer, tiny_decoder, trajectories_of

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.objective import ObjectiveConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.errors import ConfigError
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import load_model
from freerun.model.device import choose_device, resolve_device
from freerun.model.lora import add_adapter, trained_parameters
from freerun.session import devices
from freerun.session.devices import ELSEWHERE, check_devices, count_gpus, planned_devices
from freerun.session.memory import count_parameters, describe_memory
from freerun.session.plan import describe_plan
from freerun.session.train import run_training
from freerun.trainer.ranks import SingleRank, snapshot
from freerun.trainer.supervised import SupervisedTrainer
from freerun.types import Demonstration, Publication
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel

torch.set_num_threads(1)
has_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def test_each_worker_takes_the_next_gpu_and_they_share_when_there_are_too_few() -> None:
    def devices(num_gpus: int, num_workers: int) -> list[str]:
        return [choose_device("engine.device", "auto", num_gpus=num_gpus, index=i) for i in range(num_workers)]

    assert devices(4, 3) == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices(2, 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices(0, 2) == ["cpu", "cpu"]
    assert choose_device("engine.device", "cpu", num_gpus=4, index=1) == "cpu"


@has_no_gpu
def test_a_gpu_that_is_not_there_is_refused_before_the_run_has_a_directory(tmp_path: Path) -> None:
    message = 'train.device = "cuda", but torch sees no CUDA device on this machine; set train.device = "cpu"'
    with pytest.raises(ConfigError, match=message):
        resolve_device("train.device", "cuda", index=0)
    with pytest.raises(ConfigError, match=message):
        run_training(recipe_of(make_run(tmp_path), "--train.device", "cuda"), resume=False)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match=r"engine\.device"):
        check_devices(recipe_of(tmp_path / "tiny.toml", "--engine.device", "cuda"))


def test_gpus_that_cannot_be_shared_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path)
    monkeypatch.setattr(devices, "count_gpus", lambda: 4)
    vllm = ("--engine.backend", "vllm", "--engine.num_gpus", "2")
    on_vllm = recipe_of(path, *vllm, "--train.num_ranks", "2")
    assert planned_devices(on_vllm) == {
        "rollout-0": "cuda:0, cuda:1",
        "trainer-0": "cuda:2",
        "trainer-1": "cuda:3",
    }
    with pytest.raises(
        ConfigError, match=r"train.num_ranks = 5, but torch sees 4 GPU\(s\) .* NCCL's ranks cannot"
    ):
        check_devices(recipe_of(path, "--train.num_ranks", "5"))
    check_devices(recipe_of(path, "--train.num_ranks", "5", "--train.device", "cpu"))
    with pytest.raises(ConfigError, match=r"engine.num_workers x engine.num_gpus = 6, .* vLLM servers cannot"):
        check_devices(recipe_of(path, *vllm, "--engine.num_workers", "3"))
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r'engine.device = "cuda", but torch sees no CUDA device'):
        check_devices(recipe_of(path, "--engine.backend", "vllm", "--engine.device", "cuda"))


@has_no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_workers_elsewhere_find_their_own(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    assert count_gpus() == 0
    assert resolve_device("engine.device", "auto", index=3) == torch.device("cpu")
    assert planned_devices(recipe_of(path)) == {"rollout-0": "cpu", "trainer": "cpu"}
    on_ray = recipe_of(path, "--runtime.backend", "ray", "--engine.device", "cuda")
    check_devices(on_ray)
    assert set(planned_devices(on_ray).values()) == {ELSEWHERE}


@has_no_gpu
def test_the_plan_shows_device_dtype_cores_and_memory_by_dtype(tmp_path: Path) -> None:
    path = make_run(tmp_path, hidden_size=256, intermediate_size=256)
    num_parameters = count_parameters(tmp_path / "model")
    assert num_parameters == sum(p.numel() for p in load_model(tmp_path / "model").parameters())
    plan = describe_plan(recipe_of(path))
    assert "rollout-0: 16 slots, float32 on cpu, " in plan
    assert "trainer: float32 on cpu, " in plan
    assert f"trainer about {num_parameters * 16 / 1e6:.1f} MB (weights, gradients, moments), two" in plan
    rollout = f"memory of each rollout worker: packed weights at most {num_parameters * 8 / 1e6:.1f} MB, "
    evaluating = f"weights while evaluating {num_parameters * 4 / 1e6:.1f} MB, KV cache up to 1.3 MB"
    assert rollout + evaluating in plan, "weights are read in place"
    assert "bfloat16" not in plan
    plan = describe_plan(recipe_of(path, "--engine.dtype", "bfloat16", "--train.dtype", "bfloat16"))
    assert "rollout-0: 16 slots, bfloat16 on cpu, " in plan
    assert f"trainer about {num_parameters * 18 / 1e6:.1f} MB (weights, gradients, moments in float32, " in plan
    assert f"two shared buffers {num_parameters * 4 / 1e6:.1f} MB" in plan
    assert f"memory of each rollout worker: weights while evaluating {num_parameters * 2 / 1e6:.1f} MB" in plan
    assert "KV cache up to 0.7 MB" in plan
    assert 'warning: engine.dtype = "bfloat16" on a CPU; most CPUs compute it ten times slower' in plan
    assert 'warning: train.dtype = "bfloat16" on a CPU; most CPUs compute it ten times slower' in plan


def test_an_engine_that_evaluates_beside_an_adapter_keeps_only_the_adapter_twice(tmp_path: Path) -> None:
    path = make_run(tmp_path, hidden_size=512, num_layers=1, intermediate_size=320)
    recipe = recipe_of(path, "--lora.rank", "64", "--lora.targets", "o_proj")
    base, adapter = count_parameters(tmp_path / "model") * 4, 64 * (512 + 512) * 4
    line = describe_memory(recipe, tmp_path / "model", engine_device="cpu")[-1]
    assert f"weights {base / 1e6:.1f} MB, packed weights at most {base / 1e6:.1f} MB, " in line
    assert f"weights while evaluating {adapter / 1e6:.1f} MB" in line, "the packed base is shared"
    in_half = recipe_of(path, "--engine.dtype", "bfloat16")
    assert "packed" not in describe_memory(in_half, tmp_path / "model", engine_device="cpu")[-1]


def test_a_trainer_on_a_gpu_borrows_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(make_run(tmp_path))
    lent = "and those of idle rollout workers"
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    assert lent in describe_plan(recipe)
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    assert lent not in describe_plan(recipe)


def test_the_plan_says_that_rollout_workers_may_retire(tmp_path: Path) -> None:
    path, retire = make_run(tmp_path), "rollout workers retire while the trainer is the limit, down to "
    two = ("--engine.num_workers", "2")
    assert f"{retire}engine.min_workers = 1" in describe_plan(recipe_of(path, *two, "--engine.min_workers", "1"))
    assert retire not in describe_plan(recipe_of(path, *two))


def test_parked_caches_are_counted_if_prompts_are_played_in_sessions(tmp_path: Path) -> None:
    path = make_run(tmp_path, hidden_size=256, intermediate_size=256)

    def line(*overrides: str) -> str:
        return describe_memory(recipe_of(path, *overrides), tmp_path / "model", engine_device="cpu")[-1]

    sessions = ("--rollout.episode", "games:guess", "--rollout.max_session_tokens", "64")
    as_many_as_slots = ("--engine.parked_tokens", "640")
    assert line(*sessions, *as_many_as_slots).endswith("parked caches up to 1.3 MB, KV cache up to 1.3 MB")
    assert "parked" not in line(*as_many_as_slots)
    assert "parked" not in line(*sessions, "--engine.parked_tokens", "0")


def test_a_cache_on_a_gpu_is_reserved_whole_and_one_on_a_cpu_as_far_as_it_may_be_used(tmp_path: Path) -> None:
    path = make_run(tmp_path, hidden_size=256, intermediate_size=256)
    recipe = recipe_of(path, "--engine.cache_tokens", "64")
    on_cpu = describe_memory(recipe, tmp_path / "model", engine_device="cpu")[-1]
    assert on_cpu.endswith("KV cache up to 0.1 MB")
    on_gpu = describe_memory(recipe, tmp_path / "model", engine_device="cuda:0")[-1]
    assert on_gpu.startswith("memory of each rollout worker: weights ")
    assert on_gpu.endswith("KV cache up to 1.3 MB")
    vllm = recipe_of(path, "--engine.cache_tokens", "64", "--engine.backend", "vllm", "--lora.rank", "2")
    lines = describe_memory(vllm, tmp_path / "model", engine_device="cuda:0")
    size = count_parameters(tmp_path / "model") * 4
    held = f"weights {size / 1e6:.1f} MB, merging the adapter {2 * size / 1e6:.1f} MB, KV cache up to 0.1 MB"
    assert lines[-1] == f"memory of each rollout worker: {held}"


def test_on_ray_every_node_has_buffers_for_its_workers(tmp_path: Path) -> None:
    recipe = recipe_of(make_run(tmp_path), "--runtime.backend", "ray")
    lines = describe_memory(recipe, tmp_path / "model", engine_device=ELSEWHERE)
    assert "two shared buffers on each node of Ray" in lines[0]


def test_the_fake_gpu_refuses_tensors_of_two_devices() -> None:
    with FakeGPU(), pytest.raises(RuntimeError, match="several devices"):
        torch.ones(3, device=GPU) + torch.ones(3)
    with FakeGPU(), pytest.raises(RuntimeError, match="several devices"):
        tiny_decoder().to(GPU).embedding(torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("dtype", "lora"),
    [(torch.float32, LoraConfig()), (torch.bfloat16, LoraConfig(rank=2, targets=("q_proj", "down_proj")))],
)
def test_an_engine_keeps_all_its_tensors_on_its_device(dtype: torch.dtype, lora: LoraConfig) -> None:
    with FakeGPU():
        model = random_model(0)
        if lora.is_on:
            add_adapter(model, lora, seed=0)
        published = {name: parameter.detach().clone() for name, parameter in trained_parameters(model).items()}
        settings = EngineConfig(num_slots=4, cache_tokens=90, prefill_chunk_tokens=4)
        live = Engine(model.to(GPU, dtype), settings, text=Letters(), max_sequence_tokens=64, seed=1)
        engine = PinnableEngine(live)
        engine.load(0, published)
        engine.pin(0)
        engine.submit(make_request(1, prompt_length=9, num_samples=3, max_completion_tokens=6))
        engine.submit(
            make_request(
                2, prompt_length=2, num_samples=2, top_k=3, max_completion_tokens=4, top_p=0.9, temperature=0.7
            )
        )
        engine.submit(make_request(3, prompt_length=1, num_samples=2, max_completion_tokens=4, temperature=0.0))
        num_finished, num_steps = 0, 0
        while engine.has_work:
            if num_steps == 6:
                engine.load(1, published)
            num_finished += len(engine.step())
            num_steps += 1
            assert num_steps < 500, "the engine makes no progress"
        assert num_finished == 3
        assert {(p.device, p.dtype) for p in live.model.parameters()} == {(GPU, dtype)}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"correction": "none"},
        {"advantage": "gae"},
        {"correction": "m2po"},
        {"correction": "masked", "clip": "dual"},
        {"ratio": "sequence", "clip": "sapo"},
        {"clip": "cispo", "kl_coefficient": 0.1, "entropy_coefficient": 0.1},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:for (weight|bias). copying from a non-meta parameter")
def test_a_step_moves_its_batches_to_the_device_and_its_metrics_back(settings: dict[str, Any]) -> None:
    objective = ObjectiveConfig(**settings)
    with FakeGPU():
        trainer = make_trainer(tiny_decoder().to(GPU), config(num_minibatches=2), objective)
        trainer.reference = tiny_decoder(1).to(GPU)
        result = trainer.step(make_groups())
        assert result.metrics["grad_norm"] == 1
        state = snapshot(SingleRank(), trainer.optimizer_state())
        assert {str(tensor.device) for tensor in state.values()} == {"cpu"}
        again = make_trainer(tiny_decoder().to(GPU), config(num_minibatches=2), objective)
        again.load_optimizer_state(state)
        moments = [t for name, t in again.optimizer_state().items() if name.startswith("exp_avg")]
        assert {tensor.device for tensor in moments} == {GPU}


def test_supervised_steps_and_publications_leave_the_device_when_they_should() -> None:
    rows = [
        Demonstration(token_ids=t.completion.token_ids, is_trained=t.completion.token_ids >= 0)
        for t in trajectories_of(make_groups())
        if len(t.completion.token_ids) > 1
    ]
    for row in rows:
        row.is_trained[0] = False
    with FakeGPU():
        model = tiny_decoder().to(GPU)
        SupervisedTrainer(model, config()).step(rows, lr=0.01)
        shared = SharedMemoryChannel(create_buffers("test"), WeightLayout(model))
        shared.write(1, {name: parameter.detach() for name, parameter in model.named_parameters()})
        fetched = shared.fetch(Publication(version=1, checksum=shared.checksum(1)))
        assert {(str(tensor.device), tensor.dtype) for tensor in fetched.values()} == {("cpu", torch.float32)}


def test_a_model_that_is_moved_after_use_moves_its_tables() -> None:
    with FakeGPU():
        model = tiny_decoder()
        full_forward_logits(model, [1, 2, 3])
        assert full_forward_logits(model.to(GPU), [1, 2, 3]).device == GPU

"""The share of the machine's float32 peak that training and decoding of SmolLM2 reach.

Operations that the algorithm needs, independent of the implementation:

    training     6 x weights of the layers      per token read (a prompt once per group), forward and backward
                 6 x weights of the head        per completion token
                 12 x layers x heads x size     per query and key that attend to each other
    decoding     2 x weights                    per token of a prompt (once per group) and of a completion

The peak is the best of several products of 2048 x 2048 matrices on as many threads, measured alongside.
"""

import json
import statistics
from typing import Any

from bench.harness import Result, Side, alternately, record
from bench.models import smollm2
from bench.trajectories import make_groups

NUM_THREADS = 2
MICRO_BATCH_TOKENS = 2048
PROMPT_TOKENS, NEW_TOKENS, NUM_SEQUENCES, GROUP_SIZE = 60, 128, 64, 8

Groups = list[dict[str, Any]]


def measure(repetitions: int) -> None:
    shape = json.loads((smollm2() / "config.json").read_text())
    with Side("gemm.py") as gemm:
        training = _training(shape, gemm, repetitions)
        decoding = _decoding(shape, gemm, repetitions)
    record("peak", training, decoding)


def _training(shape: dict[str, Any], gemm: Side, repetitions: int) -> Result:
    groups = make_groups(num_groups=2, group_size=GROUP_SIZE, vocab_size=shape["vocab_size"])
    with Side("trainer.py", str(smollm2())) as trainer:

        def flop_per_second() -> float:
            answer = trainer.ask(num_threads=NUM_THREADS, groups=groups, micro_batch_tokens=MICRO_BATCH_TOKENS)
            return training_flop(shape, groups, answer["num_computed_tokens"]) / float(answer["seconds"])

        ours, peaks = alternately(flop_per_second, lambda: _peak(gemm), repetitions=repetitions)
    return _share("training SmolLM2-135M", ours, peaks, at_least=60, aim=70)


def _decoding(shape: dict[str, Any], gemm: Side, repetitions: int) -> Result:
    prompts = make_groups(
        num_groups=NUM_SEQUENCES // GROUP_SIZE, group_size=GROUP_SIZE, vocab_size=shape["vocab_size"]
    )
    groups = [{"prompt": group["prompt"], "lengths": [NEW_TOKENS] * GROUP_SIZE} for group in prompts]
    weights = layer_weights(shape) + head_weights(shape)
    figures = {}
    # One process of two threads, or two of one thread each: the faster one.
    for num_processes in (1, 2):
        num_threads = NUM_THREADS // num_processes
        with Side("engine.py", str(smollm2()), str(num_processes), str(NUM_SEQUENCES // num_processes)) as engine:

            def flop_per_second(engine: Side = engine, num_threads: int = num_threads) -> float:
                answer = engine.ask(num_threads=num_threads, groups=groups, seed=0)
                num_tokens: int = answer["tokens"] + PROMPT_TOKENS * len(groups)
                return 2 * weights * num_tokens / float(answer["seconds"])

            ours, peaks = alternately(flop_per_second, lambda: _peak(gemm), repetitions=repetitions)
        plural = "es" if num_processes > 1 else ""
        claim = f"decoding SmolLM2-135M, {NUM_SEQUENCES} sequences, {num_processes} process{plural}"
        figures[num_processes] = _share(claim, ours, peaks, at_least=50, aim=60)
    return max(figures.values(), key=lambda result: statistics.median(result.ours))


def _share(claim: str, ours: list[float], peaks: list[float], *, at_least: float, aim: float) -> Result:
    return Result(
        claim=claim,
        peer="float32 matrix products",
        at_least=at_least,
        aim=aim,
        unit=" %",
        ours=[100 * own / peak for own, peak in zip(ours, peaks, strict=True)],
        theirs=[],
        settings={"num_threads": NUM_THREADS, "flop_per_second": ours, "peak_flop_per_second": peaks},
    )


def _peak(gemm: Side) -> float:
    return float(gemm.ask(num_threads=NUM_THREADS)["flop_per_second"])


def layer_weights(shape: dict[str, Any]) -> int:
    hidden, inner, heads = shape["hidden_size"], shape["intermediate_size"], shape["num_attention_heads"]
    kv_share = shape["num_key_value_heads"] / heads
    per_layer = hidden * hidden * (2 + 2 * kv_share) + 3 * hidden * inner
    return int(shape["num_hidden_layers"] * per_layer)


def head_weights(shape: dict[str, Any]) -> int:
    return int(shape["hidden_size"] * shape["vocab_size"])


def training_flop(shape: dict[str, Any], groups: Groups, num_computed_tokens: float) -> float:
    num_loss_tokens = sum(len(completion) for group in groups for completion in group["completions"])
    per_pair: int = 12 * shape["num_hidden_layers"] * shape["hidden_size"]
    linear = 6 * layer_weights(shape) * num_computed_tokens + 6 * head_weights(shape) * num_loss_tokens
    return linear + per_pair * sum(map(_num_pairs, groups))


def _num_pairs(group: dict[str, Any]) -> float:
    """Queries and keys that see each other, the prompt's once."""
    trunk = len(group["prompt"])
    branches = [len(completion) - 1 for completion in group["completions"]]
    return sum(n * (n + 1) / 2 for n in (trunk, *branches)) + trunk * sum(branches)

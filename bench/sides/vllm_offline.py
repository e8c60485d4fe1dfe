"""vLLM's CPU build, in this process: samples groups of completions of forced lengths.

    vllm_offline.py MODEL NUM_SEQUENCES

Its prefix cache is on, since the samples of a group share their prompt, but is emptied before each measurement:
only the work for new prompts counts. The engine core runs in this process; a separate one would poll for work
while the other side is measured. It uses all cores that this process may use.
"""

import os
import sys
import time
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

from asked import answer
from vllm import LLM, SamplingParams

MAX_SEQUENCE_TOKENS = 1024


def main() -> None:
    model, num_sequences = sys.argv[1:]
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=MAX_SEQUENCE_TOKENS,
        max_num_seqs=int(num_sequences),
        enable_prefix_caching=True,
        disable_log_stats=True,
    )

    def work(groups: list[dict[str, Any]]) -> dict[str, Any]:
        llm.reset_prefix_cache()
        prompts = [{"prompt_token_ids": group["prompt"]} for group in groups]
        sampling = [_sampling(group) for group in groups]
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
        return {"tokens": tokens, "seconds": seconds}

    answer(work)


def _sampling(group: dict[str, Any]) -> SamplingParams:
    """Temperature 1; nothing ends a completion before its length. `logprobs=0` are those of the sampled tokens."""
    (max_tokens,) = set(group["lengths"])
    return SamplingParams(
        n=len(group["lengths"]),
        temperature=1.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
    )


if __name__ == "__main__":
    main()

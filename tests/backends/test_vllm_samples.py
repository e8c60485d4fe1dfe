"""Samples of vLLM: seeds, cached prompts, what ends them, and the versions that a completion carries."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_models import make_request
from tiny_runs import make_run

from freerun.backends.vllm.client import Sampled, VersionSpan, _Logprobs, _TokenLogprob
from freerun.backends.vllm.salts import CacheSalts
from freerun.backends.vllm.samples import sample_seed, sampling_parameters, to_completion
from freerun.data.tokenizer import Tokenizer
from freerun.errors import WorkerError
from freerun.types import Span


def test_every_sample_of_a_run_has_a_seed_of_its_own() -> None:
    seeds = {sample_seed(run, ordinal, sample) for run in range(3) for ordinal in range(40) for sample in range(8)}
    assert len(seeds) == 3 * 40 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(1, 2, 3) == sample_seed(1, 2, 3)


def test_every_call_of_a_session_has_a_seed_of_its_own_and_the_first_that_of_its_sample() -> None:
    seeds = {
        sample_seed(7, ordinal, sample, call) for ordinal in (3, 31) for sample in range(8) for call in range(40)
    }
    assert len(seeds) == 2 * 8 * 40
    assert sample_seed(7, 3, 1) == sample_seed(7, 3, 1, 0) == 3865955750546683564
    request = msgspec.structs.replace(make_request(3, num_samples=2), sample=4, call=5, session=1)
    assert [sampling_parameters(request, index, 7)["seed"] for index in range(2)] == [
        sample_seed(7, 3, 4 + index, 5) for index in range(2)
    ]


def test_cached_prompts_are_kept_apart_by_version() -> None:
    salts = CacheSalts(keeps_cache=False)
    assert salts.salt(1, 0) == salts.salt(2, 0) == salts.salt(None, 0)
    assert salts.salt(1, 1) == salts.salt(None, 1) != salts.salt(1, 0)


def test_if_caches_are_kept_a_session_finds_its_own_after_a_load_and_a_new_one_does_not() -> None:
    salts = CacheSalts(keeps_cache=True)
    before = salts.salt(1, 0)
    assert salts.salt(1, 2) == before
    assert salts.salt(2, 2) == salts.salt(None, 2) != before
    salts.end_session(1)
    salts.end_session(99)
    assert salts.salt(1, 2) != before


def test_only_the_requests_own_end_tokens_end_a_sample() -> None:
    parameters = sampling_parameters(make_request(1, stop_token_ids=(4,), stop_strings=("\n",)), 0, 0)
    assert parameters["ignore_eos"]
    assert parameters["stop_token_ids"] == [4]
    assert parameters["stop"] == ["\n"]


def sampled(**changes: Any) -> Sampled:
    values: dict[str, Any] = {"token_ids": [3, 4, 5], "finish_reason": "length"}
    values["logprobs"] = _Logprobs([_TokenLogprob(-1.0)] * 3)
    values["weight_versions"] = [VersionSpan("7", 0, 1), VersionSpan("8", 1, 3)]
    return Sampled(**values | changes)


def test_a_completion_carries_the_versions_that_the_server_reports(tmp_path: Path) -> None:
    make_run(tmp_path)
    text = Tokenizer.load(tmp_path / "model")
    completion = to_completion(sampled(), make_request(1), text)
    assert completion.spans == (Span(7, 1), Span(8, 2))
    assert completion.text == text.decode([3, 4, 5])
    greedy = to_completion(sampled(), make_request(1, temperature=0.0), text)
    assert greedy.logprobs.tolist() == [0.0, 0.0, 0.0]
    for broken, message in (
        ({"weight_versions": None}, "3 tokens, 3 logprobs and versions of 0"),
        ({"logprobs": _Logprobs([])}, "3 tokens, 0 logprobs"),
        ({"finish_reason": "abort"}, 'ended a sample of prompt 1 with "abort"'),
        ({"logprobs": _Logprobs([_TokenLogprob(-9999.0)] * 3)}, "logits are not finite"),
    ):
        with pytest.raises(WorkerError, match=message):
            to_completion(sampled(**broken), make_request(1), text)

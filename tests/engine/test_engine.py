"""The engine's logprobs are those of a plain full forward, whatever is interrupted, preempted or mixed."""

import numpy as np
import pytest
import torch
from engine_reference import logprobs_of_full_forward, logprobs_with_kept_cache
from tiny_models import TINY, Letters, make_request, random_model, random_weights

import freerun.engine.engine
from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.sampler import streams, uniforms
from freerun.engine.scheduler import lent_prompts
from freerun.errors import RequestError, WeightsError, WorkerError
from freerun.model.attention import full_forward_logits
from freerun.types import Completion, Request

WEIGHTS = {version: random_weights(100 + version) for version in range(4)}
Finished = dict[int, tuple[Request, tuple[Completion, ...]]]


def make_engine(**overrides: object) -> Engine:
    settings: dict[str, object] = {"num_slots": 8, "cache_tokens": 400, "prefill_chunk_tokens": 16} | overrides
    engine = Engine(random_model(0), EngineConfig(**settings), text=Letters(), max_sequence_tokens=100, seed=7)  # type: ignore[arg-type]
    engine.load(0, WEIGHTS[0])
    return engine


def run(engine: Engine, requests: list[Request], load_at: dict[int, int] | None = None) -> Finished:
    """Step until everything is finished; `load_at` maps a step number to the version loaded before it."""
    for request in requests:
        engine.submit(request)
    finished: Finished = {}
    step = 0
    while engine.has_work:
        if load_at and step in load_at:
            engine.load(load_at[step], WEIGHTS[load_at[step]])
        for request, completions in engine.step():
            finished[request.request_id] = (request, completions)
        step += 1
        assert step < 2000, "the engine makes no progress"
    return finished


def assert_matches_full_forward(finished: Finished) -> None:
    for request, completions in finished.values():
        for completion in completions:
            assert len(completion.token_ids) == len(completion.logprobs) == len(completion.versions)
            for version in set(completion.versions.tolist()):
                expected = logprobs_of_full_forward(random_model(0), WEIGHTS[version], request, completion)
                mine = completion.versions == version
                np.testing.assert_allclose(completion.logprobs[mine], expected[mine], atol=1e-4)


MIX = [
    make_request(1, prompt_length=5, num_samples=4, max_completion_tokens=30),
    make_request(2, prompt_length=1, num_samples=3, max_completion_tokens=9),
    make_request(3, prompt_length=40, num_samples=2, max_completion_tokens=25),
    make_request(4, prompt_length=17, num_samples=1, max_completion_tokens=40, temperature=0.7),
    make_request(5, prompt_length=16, num_samples=3, max_completion_tokens=5),
]


@pytest.mark.parametrize("overrides", [{}, {"num_slots": 3}, {"prefill_chunk_tokens": 3}, {"cache_tokens": 120}])
def test_logprobs_equal_a_full_forward_in_any_batch_mix(overrides: dict[str, int]) -> None:
    engine = make_engine(**overrides)
    finished = run(engine, MIX)
    assert finished.keys() == {1, 2, 3, 4, 5}
    assert_matches_full_forward(finished)
    assert (engine.stats().num_preemptions > 0) == ("cache_tokens" in overrides)


@pytest.mark.parametrize("cache_tokens", [400, 110])
@pytest.mark.parametrize("load_at", [{6: 1}, {3: 1, 4: 2, 20: 3}, {1: 1}])
def test_interrupted_sequences_continue_under_the_new_weights(load_at: dict[int, int], cache_tokens: int) -> None:
    engine = make_engine(cache_tokens=cache_tokens)
    finished = run(engine, MIX, load_at)
    assert_matches_full_forward(finished)
    seen = {version for _, cs in finished.values() for c in cs for version in c.versions.tolist()}
    assert seen == {0, *load_at.values()}
    assert engine.stats().num_recomputed_tokens > 0


@pytest.mark.parametrize("cache_tokens", [400, 120])
def test_a_drained_engine_finishes_what_has_begun_under_its_version_and_begins_nothing(cache_tokens: int) -> None:
    engine = make_engine(kv_on_load="drain", num_slots=4, cache_tokens=cache_tokens)
    for request in MIX:
        engine.submit(request)
    finished: Finished = {}
    wanted = 0
    for step in range(2000):
        wanted += step in (5, 40)
        if (engine.version or 0) < wanted and engine.drain():
            engine.load(wanted, WEIGHTS[wanted])
        if engine.has_work:
            finished |= {request.request_id: (request, completions) for request, completions in engine.step()}
    assert finished.keys() == {request.request_id for request in MIX}
    assert_matches_full_forward(finished)
    assert engine.stats().num_interrupts == engine.stats().num_recomputed_tokens == 0
    assert (engine.stats().num_preemptions > 0) == (cache_tokens == 120)
    completions = [completion for _, group in finished.values() for completion in group]
    assert all(len(completion.spans) == 1 for completion in completions)
    # Had anything begun meanwhile, there would have been no end of it before all was finished.
    assert {completion.oldest_version for completion in completions} == {0, 1, 2}


def test_an_idle_engine_is_drained_at_once() -> None:
    engine = make_engine(kv_on_load="drain")
    assert engine.drain()
    engine.load(1, WEIGHTS[1])
    [(_, (completion,))] = run(engine, [make_request(1, num_samples=1)]).values()
    assert completion.oldest_version == 1


def test_the_version_label_names_the_weights_that_made_the_logits() -> None:
    finished = run(make_engine(), MIX, {7: 1, 15: 2})
    num_checked = 0
    for request, completions in finished.values():
        for completion in completions:
            by_version = {
                v: logprobs_of_full_forward(random_model(0), WEIGHTS[v], request, completion) for v in (0, 1, 2)
            }
            for position, version in enumerate(completion.versions.tolist()):
                distances = {v: abs(by_version[v][position] - completion.logprobs[position]) for v in by_version}
                assert min(distances, key=distances.__getitem__) == version
                num_checked += 1
    assert num_checked > 100


@pytest.mark.parametrize("load_at", [{6: 1}, {4: 1, 5: 2, 20: 3}])
def test_a_kept_cache_holds_what_each_version_computed(load_at: dict[int, int]) -> None:
    # Prompts fit one chunk, so that no prompt is computed under two versions.
    requests = [
        make_request(1, prompt_length=5, num_samples=3, max_completion_tokens=30),
        make_request(2, prompt_length=9, num_samples=2, max_completion_tokens=20),
    ]
    engine = make_engine(kv_on_load="keep")
    finished = run(engine, requests, load_at)
    assert engine.stats().num_recomputed_tokens == 0
    assert engine.stats().num_interrupts > 0
    num_mixed = 0
    for request, completions in finished.values():
        for completion in completions:
            expected = logprobs_with_kept_cache(random_model(0), WEIGHTS, [(request, completion)])
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
            num_mixed += len(completion.spans) > 1
    assert num_mixed == 5


def test_a_kept_cache_is_never_lent_to_a_sample_that_starts_later() -> None:
    # One slot short: the last sample starts after the load, and must compute the prompt itself.
    request = make_request(1, prompt_length=9, num_samples=3, max_completion_tokens=12)
    finished = run(make_engine(kv_on_load="keep", num_slots=2), [request], {4: 1})
    late = finished[1][1][2]
    assert late.versions.tolist() == [1] * 12
    np.testing.assert_allclose(
        late.logprobs, logprobs_of_full_forward(random_model(0), WEIGHTS[1], request, late), atol=1e-4
    )


def test_a_prompt_that_a_load_came_into_is_not_lent() -> None:
    # The first sample has two of the prompt's three chunks when the load comes; its cache is kept, for itself.
    request = make_request(1, prompt_length=40, num_samples=3, max_completion_tokens=12)
    finished = run(make_engine(kv_on_load="keep", prefill_chunk_tokens=16), [request], {2: 1})
    for late in finished[1][1][1:]:
        assert late.versions.tolist() == [1] * 12
        np.testing.assert_allclose(
            late.logprobs, logprobs_of_full_forward(random_model(0), WEIGHTS[1], request, late), atol=1e-4
        )


def test_tokens_do_not_depend_on_who_shares_the_batch() -> None:
    together = run(make_engine(), MIX)
    for request in MIX:
        alone = run(make_engine(), [request])[request.request_id][1]
        for mine, shared in zip(alone, together[request.request_id][1], strict=True):
            assert mine.token_ids.tolist() == shared.token_ids.tolist()


def test_preemption_changes_no_token() -> None:
    roomy, tight = make_engine(), make_engine(cache_tokens=100)
    expected, actual = run(roomy, MIX), run(tight, MIX)
    assert tight.stats().num_preemptions > 0
    for request_id, (_, completions) in expected.items():
        for one, other in zip(completions, actual[request_id][1], strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()


def test_completions_say_when_they_had_their_slot() -> None:
    """With one slot they had it one after the other."""
    request = make_request(1, num_samples=4, max_completion_tokens=5)
    [(_, completions)] = run(make_engine(num_slots=1), [request]).values()
    uses = [completion.slot_seconds for completion in completions if completion.slot_seconds is not None]
    assert len(uses) == 4
    ends = [ago for use in uses for ago in use]
    assert ends == sorted(ends, reverse=True), "began, ended, began, ended, ..."
    assert all(began > ended >= 0 for began, ended in uses)


def test_samples_of_a_group_share_one_prefill() -> None:
    request = make_request(1, prompt_length=50, num_samples=8, max_completion_tokens=4)
    engine = make_engine(prefill_chunk_tokens=64, cache_tokens=800)
    run(engine, [request])
    assert engine.stats().num_prefill_tokens == 49


def test_samples_of_a_group_decode_with_the_prompt_of_one_slot() -> None:
    requests = [make_request(i, prompt_length=7 + i, num_samples=3) for i in (1, 2)]
    expected = run(make_engine(), requests)
    engine = make_engine()
    for request in requests:
        engine.submit(request)
    for _ in range(5):
        assert not engine.step()
    decoding = engine._scheduler.running
    prompts = lent_prompts(decoding)
    assert sorted(prompts) == [(0, 7), (0, 7), (0, 7), (3, 8), (3, 8), (3, 8)]
    for sequence, (lender, num_lent) in zip(decoding, prompts, strict=True):
        if sequence.slot != lender:
            for layer_2SKLD in engine._cache.layers_2SKLD:
                layer_2SKLD[:, sequence.slot, :, :num_lent] = torch.nan
    for _ in range(4):
        assert not engine.step()
    # While the lender is there nobody looks at a copy of its own.
    for sequence in decoding:
        request = sequence.group.request
        completion = expected[request.request_id][1][sequence.group.sequences.index(sequence)]
        assert sequence.num_sampled >= 8
        assert sequence.logprobs == completion.logprobs[: sequence.num_sampled].tolist()


@pytest.mark.parametrize("overrides", [{}, {"kv_on_load": "keep"}, {"cache_tokens": 100}, {"num_slots": 3}])
def test_whoever_lends_a_prompt_no_bit_of_a_logprob_changes(
    overrides: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [*MIX, make_request(6, prompt_length=1, num_samples=2)]
    lent = run(make_engine(**overrides), requests, {6: 1, 13: 2})
    monkeypatch.setattr(
        freerun.engine.engine,
        "lent_prompts",
        lambda sequences: [(s.slot, s.group.prompt_length - 1) for s in sequences],
    )
    for request_id, (_, completions) in run(make_engine(**overrides), requests, {6: 1, 13: 2}).items():
        for one, other in zip(completions, lent[request_id][1], strict=True):
            assert one.logprobs.tolist() == other.logprobs.tolist()


def test_samples_of_a_group_differ_and_seeds_differ() -> None:
    request = make_request(1, num_samples=6, max_completion_tokens=20)
    completions = run(make_engine(), [request])[1][1]
    assert len({tuple(c.token_ids.tolist()) for c in completions}) == 6


def test_the_random_numbers_of_different_seeds_and_ordinals_are_unrelated() -> None:
    samples = [stream for seed in range(4) for ordinal in range(-4, 8) for stream in streams(seed, ordinal, 4)]
    numbers = [uniforms(np.repeat(stream, 8), range(8)).tolist() for stream in samples]
    flat = [number for row in numbers for number in row]
    assert len(set(flat)) == len(flat)
    assert 0 <= min(flat) < max(flat) < 1
    assert abs(np.mean(flat) - 0.5) < 0.03
    assert abs(np.corrcoef(np.array(numbers), rowvar=False) - np.eye(8)).max() < 0.3


def test_a_stop_token_and_a_stop_string_end_a_completion() -> None:
    free = run(make_engine(), [make_request(1, max_completion_tokens=30)])[1][1][0]
    assert free.finish_reason == "length"
    stop_token = int(free.token_ids[10])
    cut = run(make_engine(), [make_request(1, max_completion_tokens=30, stop_token_ids=(stop_token,))])[1][1][0]
    assert cut.finish_reason == "stop"
    assert cut.token_ids[-1] == stop_token
    assert stop_token not in cut.token_ids[:-1]
    stop_string = free.text[7:10]
    cut = run(make_engine(), [make_request(1, max_completion_tokens=30, stop_strings=(stop_string,))])[1][1][0]
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: free.text.index(stop_string) + 3]


def test_top_k_and_top_p_logprobs_are_those_of_the_restricted_distribution() -> None:
    request = make_request(1, max_completion_tokens=40, top_k=5, top_p=0.8, temperature=1.3)
    completion = run(make_engine(), [request])[1][1][0]
    model = random_model(0)
    model.load_state_dict(WEIGHTS[0])
    tokens = request.prompt_token_ids.tolist() + completion.token_ids.tolist()
    with torch.no_grad():
        logits = full_forward_logits(model, tokens)[len(request.prompt_token_ids) - 1 : -1] / 1.3
    for row, token, logprob in zip(logits, completion.token_ids.tolist(), completion.logprobs, strict=True):
        top = row.topk(5)
        probabilities = top.values.softmax(-1)
        kept = int((probabilities.cumsum(-1) - probabilities < 0.8).sum())
        allowed = dict(zip(top.indices[:kept].tolist(), top.values[:kept].log_softmax(-1).tolist(), strict=True))
        assert token in allowed
        assert logprob == pytest.approx(allowed[token], abs=1e-4)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    request = make_request(1, max_completion_tokens=10, temperature=0.0)
    completion = run(make_engine(), [request])[1][1][0]
    model = random_model(0)
    model.load_state_dict(WEIGHTS[0])
    tokens = request.prompt_token_ids.tolist() + completion.token_ids.tolist()
    with torch.no_grad():
        logits = full_forward_logits(model, tokens)[len(request.prompt_token_ids) - 1 : -1]
    assert completion.token_ids.tolist() == logits.argmax(-1).tolist()
    assert not completion.logprobs.any()


def test_sampled_frequencies_follow_the_distribution() -> None:
    request = make_request(1, num_samples=4000, max_completion_tokens=1)
    engine = make_engine(num_slots=512, cache_tokens=100_000)
    completions = run(engine, [request])[1][1]
    counts = np.bincount([int(c.token_ids[0]) for c in completions], minlength=TINY.vocab_size)
    model = random_model(0)
    model.load_state_dict(WEIGHTS[0])
    with torch.no_grad():
        probabilities = full_forward_logits(model, request.prompt_token_ids.tolist())[-1].softmax(-1).numpy()
    spread = np.sqrt(4000 * probabilities * (1 - probabilities)) + 1
    assert (np.abs(counts - 4000 * probabilities) < 5 * spread).all()


def test_an_aborted_request_leaves_the_others_alone() -> None:
    expected = run(make_engine(), [MIX[0]])[1][1]
    engine = make_engine()
    for request in (MIX[0], MIX[2], MIX[3]):
        engine.submit(request)
    for _ in range(5):
        engine.step()
    engine.abort(3)
    engine.abort(4)
    engine.abort(99)
    finished = run(engine, [])
    assert finished.keys() == {1}
    for mine, wanted in zip(finished[1][1], expected, strict=True):
        assert mine.token_ids.tolist() == wanted.token_ids.tolist()


def test_impossible_requests_are_refused_at_once() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="no tokens"):
        engine.submit(make_request(1, prompt_length=0))
    with pytest.raises(RequestError, match=r"prompt 2 needs 90 \+ 30 tokens"):
        engine.submit(make_request(2, prompt_length=90, max_completion_tokens=30))
    assert not engine.has_work


def test_weights_that_do_not_fit_and_weights_that_are_damaged_are_errors() -> None:
    engine = make_engine()
    with pytest.raises(WeightsError, match=r'version 1 does not fit the model: "final_norm\.weight"'):
        engine.load(1, {name: w for name, w in WEIGHTS[1].items() if name != "final_norm.weight"})
    damaged = dict(WEIGHTS[1]) | {"final_norm.weight": torch.full((24,), torch.nan)}
    engine.load(1, damaged)
    engine.submit(MIX[0])
    with pytest.raises(WorkerError, match="logits are not finite"):
        run(engine, [])

"""vLLM as a generator: the same completions, logprobs and versions that the embedded engine promises."""

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny_models import make_request
from vllm_rig import Rig, full_forward_logprobs, make_model, rig_of, served

from freerun.backends.vllm.client import VllmClient
from freerun.backends.vllm.server import TOKEN_VARIABLE
from freerun.data.tokenizer import Tokenizer
from freerun.errors import RolloutError, WorkerError
from freerun.types import Completion, Publication, Request

VOCAB = 16
LONG = 1200
"""Tokens; enough that two loads fall into the middle of it, on a fast machine too."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    with served(model, model.parent / "server.log") as address:
        yield address


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def rig(runner: asyncio.Runner, model: Path, address: str) -> Iterator[Rig]:
    """A worker at version 1, for tests that leave it there."""
    context = rig_of(model, model.parent / "logs", address)

    async def enter() -> Rig:
        rig = await context.__aenter__()
        await rig.publish(1)
        return rig

    yield runner.run(enter())
    runner.run(context.__aexit__(None, None, None))


def request_of(request_id: int, **settings: Any) -> Request:
    return make_request(request_id, vocab_size=VOCAB, **settings)


def generated(runner: asyncio.Runner, rig: Rig, request: Request) -> tuple[Completion, ...]:
    return runner.run(within(rig.pool.generate(request)))


async def within(work: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
    async with asyncio.timeout(seconds):
        return await work


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_k": 5}], ids=["plain", "cool", "top-k"]
)
def test_logprobs_are_those_of_a_full_forward(runner: asyncio.Runner, rig: Rig, settings: dict[str, Any]) -> None:
    request = request_of(1, num_samples=3, max_completion_tokens=40, **settings)
    for completion in generated(runner, rig, request):
        assert len(completion.token_ids) == 40
        assert completion.finish_reason == "length"
        assert [span.version for span in completion.spans] == [1]
        expected = full_forward_logprobs(rig.model, 1, request, completion, top_k=settings.get("top_k", 0))
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


def test_samples_of_a_group_differ_and_the_same_request_gets_the_same_again(
    runner: asyncio.Runner, rig: Rig
) -> None:
    first = generated(runner, rig, request_of(2, num_samples=4, max_completion_tokens=20))
    assert len({tuple(completion.token_ids.tolist()) for completion in first}) == 4
    again = generated(runner, rig, request_of(2, num_samples=4, max_completion_tokens=20))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
    other_ordinal = generated(runner, rig, request_of(2, num_samples=1, max_completion_tokens=20, ordinal=77))
    assert other_ordinal[0].token_ids.tolist() != first[0].token_ids.tolist()


def test_temperature_zero_takes_the_likeliest_token_with_certainty(runner: asyncio.Runner, rig: Rig) -> None:
    one, other = generated(runner, rig, request_of(3, num_samples=2, max_completion_tokens=12, temperature=0.0))
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    assert not one.logprobs.any()


def test_a_stop_token_ends_a_completion_and_is_part_of_it(runner: asyncio.Runner, rig: Rig) -> None:
    tokenizer = Tokenizer.load(rig.model)
    for completion in generated(
        runner, rig, request_of(4, num_samples=4, max_completion_tokens=200, stop_token_ids=(6, 7))
    ):
        assert completion.finish_reason == "stop"
        assert completion.token_ids[-1] in (6, 7)
        assert not {6, 7} & set(completion.token_ids[:-1].tolist())
        assert completion.text == tokenizer.decode(completion.token_ids)


def test_end_tokens_of_the_model_that_the_request_does_not_name_do_not_end_it(
    runner: asyncio.Runner, rig: Rig
) -> None:
    stops = Tokenizer.load(rig.model).stop_token_ids
    request = request_of(5, num_samples=4, max_completion_tokens=100)
    completions = generated(runner, rig, request)
    assert any(token in stops for completion in completions for token in completion.token_ids[:-1])
    assert {completion.finish_reason for completion in completions} == {"length"}


def test_a_stop_string_ends_a_completion_as_soon_as_the_text_contains_it(runner: asyncio.Runner, rig: Rig) -> None:
    tokenizer = Tokenizer.load(rig.model)
    settings = {"num_samples": 1, "max_completion_tokens": 60}
    plain = generated(runner, rig, request_of(6, **settings))[0]
    stop = tokenizer.decode(plain.token_ids[20:22])
    stopped = generated(runner, rig, request_of(6, **settings, stop_strings=("never", stop)))[0]
    num_tokens = next(n for n in range(61) if stop in tokenizer.decode(plain.token_ids[:n]))
    assert stopped.finish_reason == "stop"
    np.testing.assert_array_equal(stopped.token_ids, plain.token_ids[:num_tokens])
    assert stopped.text == tokenizer.decode(plain.token_ids[:num_tokens])


def test_a_request_that_is_too_long_is_refused_with_the_numbers(runner: asyncio.Runner, rig: Rig) -> None:
    with pytest.raises(RolloutError, match=r"prompt 7 needs 5 \+ 2100 tokens, the server takes sequences of 2048"):
        generated(runner, rig, request_of(7, max_completion_tokens=2100))


def test_prompts_that_do_not_fit_into_one_step_together_are_all_served(runner: asyncio.Runner, rig: Rig) -> None:
    async def serve() -> None:
        requests = [
            request_of(30 + i, prompt_length=400, num_samples=2, max_completion_tokens=9) for i in range(6)
        ]
        groups = await asyncio.gather(*(rig.pool.generate(request) for request in requests))
        for request, group in zip(requests, groups, strict=True):
            for completion in group:
                expected = full_forward_logprobs(rig.model, 1, request, completion)
                np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)

    runner.run(within(serve()))
    assert not rig.deaths


def test_an_aborted_request_leaves_the_server_free(runner: asyncio.Runner, rig: Rig) -> None:
    async def abort() -> None:
        task = asyncio.create_task(rig.pool.generate(request_of(8, num_samples=12, max_completion_tokens=LONG)))
        await rig.until(lambda: rig.stats.num_running == 8, "all slots to be busy")
        assert rig.stats.num_waiting == 4
        task.cancel()
        await rig.until(lambda: rig.stats.num_running == rig.stats.num_waiting == 0, "the slots to be free")
        assert len(await rig.pool.generate(request_of(9))) == 1

    runner.run(within(abort()))
    assert not rig.deaths


def test_a_pinned_version_is_sampled_whole_and_a_load_waits_for_it(runner: asyncio.Runner, rig: Rig) -> None:
    async def evaluate() -> None:
        pinned = rig.pool.pin(1)
        evaluation = asyncio.create_task(
            pinned.generate(request_of(10, num_samples=3, max_completion_tokens=LONG))
        )
        rollout = asyncio.create_task(rig.pool.generate(request_of(11, num_samples=3, max_completion_tokens=LONG)))
        await rig.until_sampled(50)
        await rig.until(lambda: rig.stats.num_evaluating == 3, "a report of the evaluation")
        load = asyncio.create_task(rig.publish(2))
        completions = await evaluation
        assert not load.done()
        pinned.release()
        await load
        assert rig.stats.version in (1, 2)
        assert {span.version for completion in completions for span in completion.spans} == {1}
        await rollout
        after = await rig.pool.generate(request_of(12))
        assert [span.version for span in after[0].spans] == [2]
        await rig.publish(1)

    runner.run(within(evaluate()))
    assert not rig.deaths


def test_who_does_not_know_the_token_can_neither_sample_nor_swap_weights(address: str) -> None:
    stranger = VllmClient(address, token="guess")
    for call in (stranger.version, stranger.resume, stranger.abort_all):
        with pytest.raises(WorkerError, match=r"answered .* with 401"):
            call()
    assert VllmClient(address, token=os.environ[TOKEN_VARIABLE]).version()


@pytest.mark.parametrize("kv_on_load", ["recompute", "keep"])
def test_a_load_interrupts_completions_without_losing_any(
    tmp_path: Path, model: Path, address: str, kv_on_load: str
) -> None:
    async def interrupt() -> tuple[int, Request, tuple[Completion, ...]]:
        async with rig_of(model, tmp_path, address, kv_on_load=kv_on_load) as rig:
            # A sample may be done before the weights come, or not have begun: then again, under later versions.
            sampled: list[Completion] = []
            for first in range(3, 45, 3):
                await rig.publish(first)
                request = request_of(20, num_samples=4, max_completion_tokens=LONG, prompt_length=70)
                generating = asyncio.create_task(rig.pool.generate(request))
                await rig.until_sampled(20)
                await rig.publish(first + 1)
                await rig.publish(first + 2)
                completions = await generating
                sampled += completions
                spans = [completion.spans for completion in completions]
                if all(len(each) > 1 and each[0].version == first for each in spans):
                    break
            # The cached prompt of the first version must not be used for a request that begins under the last.
            fresh = request_of(20, num_samples=2, max_completion_tokens=40, prompt_length=70)
            completions = (*completions, *await rig.pool.generate(fresh))
            assert not rig.deaths
            num_interrupts = sum(len(completion.spans) - 1 for completion in sampled)
            await rig.until(lambda: rig.stats.num_interrupts == num_interrupts, "a report of all interrupts")
            assert rig.stats.num_loads == first  # three for every attempt
            return first, request, completions

    first, request, completions = asyncio.run(within(interrupt()))
    for completion in completions[:4]:
        versions = [span.version for span in completion.spans]
        assert versions[0] == first
        assert versions in ([first, first + 1, first + 2], [first, first + 1], [first, first + 2])
        assert sum(span.num_tokens for span in completion.spans) == LONG
    for completion in completions[4:]:
        assert [span.version for span in completion.spans] == [first + 2]
    for completion in completions:
        expected = {v: full_forward_logprobs(model, v, request, completion) for v in range(first, first + 3)}
        whole = np.array([expected[v][i] for i, v in enumerate(completion.versions)])
        begin = completion.spans[0].num_tokens
        np.testing.assert_allclose(completion.logprobs[:begin], whole[:begin], atol=1e-3)
        if kv_on_load == "recompute":
            np.testing.assert_allclose(completion.logprobs, whole, atol=1e-3)
        elif len(completion.spans) > 1:
            # Under keep the prefix was computed by older weights: neither version's full forward.
            assert np.abs(completion.logprobs - whole).max() > 1e-2


@pytest.mark.parametrize("kv_on_load", ["recompute", "keep"])
def test_after_a_load_a_session_finds_its_own_turns_if_caches_are_kept_and_a_new_session_finds_none(
    tmp_path: Path, model: Path, address: str, kv_on_load: str
) -> None:
    client = VllmClient(address, token=os.environ[TOKEN_VARIABLE])
    first = msgspec.structs.replace(request_of(30, prompt_length=70, max_completion_tokens=40), session=1)
    is_kept = kv_on_load == "keep"

    async def play() -> None:
        async with rig_of(model, tmp_path, address, kv_on_load=kv_on_load) as rig:

            async def turn(request: Request) -> tuple[Completion, int]:
                """What was sampled, and how many tokens of the prompt were in the cache."""
                before = client.counters().num_cached_tokens
                [completion] = await rig.pool.generate(request)
                return completion, client.counters().num_cached_tokens - before

            def is_exact(request: Request, completion: Completion) -> bool:
                expected = full_forward_logprobs(model, 51, request, completion)
                return bool(np.abs(completion.logprobs - expected).max() < 1e-3)

            await rig.publish(50)
            completion, _ = await turn(first)
            await rig.publish(51)
            context = np.concatenate([first.prompt_token_ids, completion.token_ids])
            second = msgspec.structs.replace(first, request_id=31, call=1, prompt_token_ids=context)
            completion, num_cached = await turn(second)
            # Whole blocks of 32 of the 110 tokens, the last of which was never computed.
            assert num_cached == (96 if is_kept else 0)
            assert is_exact(second, completion) != is_kept
            other = msgspec.structs.replace(first, request_id=32, session=2)
            completion, num_cached = await turn(other)
            # Without kept caches it may start from what the first session has computed under this version.
            assert num_cached == (0 if is_kept else 64)
            assert is_exact(other, completion)

    asyncio.run(within(play()))


def test_a_joined_server_gets_the_weights_of_the_directory_that_is_evaluated(
    tmp_path: Path, model: Path, address: str
) -> None:
    async def evaluate() -> None:
        async with rig_of(model, tmp_path, address, publishes=False) as rig:
            [completion] = await rig.pool.generate(request_of(40, max_completion_tokens=20))
            assert [span.version for span in completion.spans] == [0]

    asyncio.run(within(evaluate()))


@pytest.mark.parametrize(
    ("num_layers", "epsilon", "reason"),
    [(1, 1e-5, "has a model with model.layers.1"), (2, 1.0, "does not compute with the weights it was given")],
    ids=["fewer layers", "another epsilon"],
)
def test_an_evaluation_refuses_to_join_a_server_of_another_model(
    tmp_path: Path, address: str, num_layers: int, epsilon: float, reason: str
) -> None:
    other = make_model(tmp_path / "other", num_layers=num_layers)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": epsilon}))

    async def evaluate() -> None:
        with pytest.raises(WorkerError, match=reason):
            async with rig_of(other, tmp_path, address, publishes=False):
                pass

    asyncio.run(within(evaluate()))


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path: Path, model: Path, address: str) -> None:
    async def damage() -> list[str]:
        async with rig_of(model, tmp_path, address) as rig:
            await rig.publish(1)
            with pytest.raises(WorkerError, match="rollout-0 is lost"):
                await rig.pool.load(Publication(version=2, checksum="0" * 16))
            return rig.deaths

    deaths = asyncio.run(within(damage()))
    assert all("weights of version 2 arrived damaged" in death for death in deaths)

"""Sessions on a real engine with a small random model, for tests with clients and environments of others."""

import dataclasses

from exact_sessions import assert_logprobs_of_a_full_forward, assert_trained_as_sampled
from loaded_dice import TEMPERATURE, EnginePolicy, LoadedDice
from tiny_models import TINY, random_model

from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.config.engine import EngineConfig
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine

MAX_TOKENS = 16_000
"""Some agents have long system prompts, and the tokens of the small tokenizer are short."""
LIMITS = SessionLimits(max_turns=6, max_session_tokens=MAX_TOKENS, max_completion_tokens=300)


class EngineRig:
    """An engine and the sessions on it, which say what is written."""

    def __init__(self, tokenizer: Tokenizer, dice: LoadedDice) -> None:
        sizes = dataclasses.replace(TINY, vocab_size=tokenizer.vocab_size, max_positions=MAX_TOKENS)
        config = EngineConfig(num_slots=2, cache_tokens=2 * MAX_TOKENS, parked_tokens=MAX_TOKENS)
        self._model = random_model(0, sizes)
        self._engine = Engine(self._model, config, text=tokenizer, max_sequence_tokens=MAX_TOKENS, seed=0)
        self._engine.load(0, {name: parameter.data for name, parameter in self._model.named_parameters()})
        self._tokenizer = tokenizer
        self._dice = dice
        self._renderer = Renderer(tokenizer, use_chat_template=True)
        self._num_sessions = 0

    def session(self, *lines: str, limits: SessionLimits = LIMITS) -> tuple[ChatSession, EnginePolicy]:
        self._num_sessions += 1
        policy = EnginePolicy(self._engine, self._dice, self._tokenizer, lines=lines, session=self._num_sessions)
        return ChatSession(self._renderer, policy, limits), policy

    @property
    def num_adopted_tokens(self) -> int:
        """Tokens that were found in parked caches."""
        return self._engine.stats().num_adopted_tokens

    def assert_exact(self, session: ChatSession, policy: EnginePolicy) -> None:
        """All that was sampled is trained once, in its own context, with the right logprobs."""
        sequences = session.sequences()
        assert_trained_as_sampled(sequences, policy)
        assert_logprobs_of_a_full_forward(sequences, self._model, temperature=TEMPERATURE)
        for completion in policy.completions:
            assert self._tokenizer.encode(completion.text).tolist() != completion.token_ids[:-1].tolist()

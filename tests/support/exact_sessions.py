"""What must hold of a session's sequences, whatever its client did to the history."""

import numpy as np
import torch
from loaded_dice import EnginePolicy

from freerun.chat.sequences import SessionSequence
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder


def assert_trained_as_sampled(sequences: tuple[SessionSequence, ...], policy: EnginePolicy) -> None:
    """Each sampled token is trained once, behind the very ids that the engine was given for it."""
    trained = []
    for sequence in sequences:
        ids = [*sequence.prompt_token_ids.tolist(), *sequence.completion.token_ids.tolist()]
        begin = len(sequence.prompt_token_ids)
        for span in sequence.completion.spans:
            end = begin + span.num_tokens
            if span.version is not None:
                assert ids[:begin] == policy.asked[span.call].token_ids.tolist()
                assert ids[begin:end] == policy.completions[span.call].token_ids.tolist()
                trained.append(span.call)
            begin = end
        assert begin == len(ids)
    assert sorted(trained) == list(range(len(policy.completions)))


@torch.no_grad()
def assert_logprobs_of_a_full_forward(
    sequences: tuple[SessionSequence, ...], model: Decoder, *, temperature: float
) -> None:
    """Each behaviour logprob is what the weights give the token in its sequence, without any cache."""
    for sequence in sequences:
        completion, num_given = sequence.completion, len(sequence.prompt_token_ids)
        ids = np.concatenate([sequence.prompt_token_ids, completion.token_ids])
        logits_TV = full_forward_logits(model, ids.tolist())[num_given - 1 : -1]
        logprobs_TV = torch.log_softmax(logits_TV / temperature, dim=-1).numpy()
        expected_T = np.take_along_axis(logprobs_TV, completion.token_ids[:, None].astype(np.int64), axis=1)[:, 0]
        expected_T = np.where(completion.is_sampled, expected_T, 0)
        np.testing.assert_allclose(completion.logprobs, expected_T, atol=1e-4)

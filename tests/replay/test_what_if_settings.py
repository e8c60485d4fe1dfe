"""A what-if changes how batches are trained on, never what they are."""

import pytest

from freerun.config.load import key_types, load_recipe
from freerun.errors import ConfigError
from freerun.replay.what_if_settings import check_start, read_changes


def refusal(*given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_changes(given)
    return str(caught.value)


def test_settings_of_objective_and_training_become_overrides() -> None:
    assert read_changes(["objective.clip_high=0.1", " train.lr = 1e-5"]) == [
        "--objective.clip_high=0.1",
        "--train.lr=1e-5",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("sampling.temperature=0.5", "it decides what was generated, and the batches are recorded"),
        ("engine.num_slots=4", "it decides what was generated"),
        ("train.prompts_per_step=4", "it decides which groups are in a batch"),
        ("objective.dynamic_sampling=true", "it decides which groups are in a batch"),
        ("buffer.max_staleness=0", "it decides which groups are in a batch"),
        ("reward.grader=exact", '"freerun regrade" says which would change'),
        ("model.path=other", "it decides what version 0 is"),
        ("data.task=euclid", "start another run"),
        ("eval.every_steps=3", "it changes nothing of what a step makes of its batch"),
    ],
)
def test_what_decided_the_batches_is_refused_with_the_reason(change: str, reason: str) -> None:
    message = refusal(change)
    assert f"--set {change.partition('=')[0]} cannot be tried on recorded batches" in message
    assert reason in message


def test_a_key_of_every_section_is_either_taken_or_refused_with_a_reason() -> None:
    refused = [key for key in key_types() if not key.startswith(("objective.", "train."))]
    for key in refused:
        assert "cannot be tried on recorded batches: it " in refusal(f"{key}=1")
    assert read_changes(["objective.advantage=rloo", "train.num_minibatches=1"])


def test_an_unknown_key_and_a_key_without_a_value_are_refused() -> None:
    assert 'did you mean "objective.clip_high"?' in refusal("objective.clip_hihg=1")
    assert "names no value" in refusal("train.lr")


def test_a_critic_and_a_reference_must_be_there_from_version_0_on() -> None:
    plain = load_recipe("times-tables")
    critic = load_recipe("times-tables", ["--objective.preset", "ppo"])
    kl = load_recipe("times-tables", ["--objective.kl_coefficient", "0.1"])
    for changed in (critic, kl):
        check_start(plain, changed, start=0, has_reference=False)
        with pytest.raises(ConfigError, match="use --from 1"):
            check_start(plain, changed, start=4, has_reference=False)
    check_start(plain, kl, start=4, has_reference=True)

"""The curriculum: who rests, for how long, and that nobody rests for ever."""

import pytest

from freerun.config.data import DataConfig
from freerun.data.curriculum import Curriculum
from freerun.errors import ConfigError


def test_a_prompt_outside_the_band_rests_for_two_visits_and_comes_back() -> None:
    curriculum = Curriculum(min_pass_rate=0.1, max_pass_rate=0.9)
    curriculum.note("solved", 1.0)
    curriculum.note("hopeless", 0.0)
    curriculum.note("useful", 0.5)
    for key in ("solved", "hopeless"):
        assert [curriculum.passes_over(key) for _ in range(4)] == [True, True, False, False]
    assert not curriculum.passes_over("useful")
    assert curriculum.resting == {}


def test_the_ends_of_the_band_belong_to_it_and_the_default_rests_nobody() -> None:
    banded, default = Curriculum(min_pass_rate=0.25, max_pass_rate=0.75), Curriculum()
    for rate in (0.25, 0.75):
        banded.note(str(rate), rate)
    for rate in (0.0, 1.0):
        default.note(str(rate), rate)
    assert banded.resting == default.resting == {}


def test_who_rests_is_all_there_is_to_resume() -> None:
    before = Curriculum(max_pass_rate=0.9)
    before.note("a", 1.0)
    before.passes_over("a")
    after = Curriculum(max_pass_rate=0.9, resting=before.resting)
    assert (
        [after.passes_over("a") for _ in range(2)] == [before.passes_over("a") for _ in range(2)] == [True, False]
    )


@pytest.mark.parametrize("band", [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (0.9, 0.1)])
def test_a_band_that_holds_nothing_is_refused(band: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match=r"must be (a number between 0 and 1|less than data.max_pass_rate)"):
        DataConfig(task="times-tables", min_pass_rate=band[0], max_pass_rate=band[1])

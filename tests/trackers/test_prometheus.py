"""The text that Prometheus scrapes: one line per value, whatever is in the names."""

import math
import re

from recorded_events import a_start, an_end, an_eval, make_step

from freerun.events.events import EngineReport, GroupFinished
from freerun.events.metrics import RunState
from freerun.trackers.prometheus import exposition
from freerun.types import EngineStats

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (?P<value>\S+)')


def values(text: str) -> dict[tuple[str, str], float]:
    """Every line must be a comment or a value in the format; none may come twice."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        key = (match["name"], match["labels"])
        assert key not in found
        found[key] = float(match["value"])
    return found


def state_after(*events: object) -> RunState:
    state = RunState()
    for event in events:
        state(event)  # type: ignore[arg-type]
    return state


def test_a_running_run_has_its_metrics_engines_and_groups() -> None:
    stats = EngineStats(version=2, num_tokens=70, num_steps=5, num_running=3, cache_tokens=640)
    state = state_after(
        a_start(),
        make_step(1, ()),
        make_step(2, (), entropy=0.5),
        an_eval(2),
        EngineReport(seconds=4.0, worker="rollout-0", stats=stats),
        GroupFinished(seconds=4.0, ordinal=1, outcome="buffered"),
    )
    found = values(exposition(state, 5.0))
    assert found["freerun_version", 'run="r"'] == 2
    assert found["freerun_running", 'run="r"'] == 1
    assert found["freerun_train", 'run="r",metric="entropy"'] == 0.5
    assert found["freerun_eval_accuracy_high", 'run="r"'] == 0.6
    assert found["freerun_engine_tokens_total", 'run="r",worker="rollout-0"'] == 70
    assert found["freerun_groups_total", 'run="r",outcome="buffered"'] == 1
    assert found["freerun_trained_samples_total", 'run="r",staleness="2"'] == 6
    shares = [x for (name, labels), x in found.items() if name == "freerun_time_share" and '"trainer"' in labels]
    assert math.isclose(sum(shares), 1)


def test_what_is_not_known_is_left_out_and_a_finished_run_is_not_running() -> None:
    before = values(exposition(RunState(), 0.0))
    assert before["freerun_running", 'run=""'] == 0
    assert not [name for name, _ in before if name.startswith(("freerun_eval", "freerun_checkpoint"))]
    assert values(exposition(state_after(a_start(), an_end()), 99.0))["freerun_running", 'run="r"'] == 0


def test_a_hostile_name_stays_in_its_label() -> None:
    hostile = 'x"} 1\nfreerun_running{run="r"} 7\\ \ud800'
    state = state_after(a_start(), make_step(1, (), **{hostile: 2.0, "nan": math.nan, "inf": -math.inf}))
    found = values(exposition(state, 3.0))
    assert found["freerun_running", 'run="r"'] == 1
    assert math.isnan(found["freerun_train", 'run="r",metric="nan"'])
    assert found["freerun_train", 'run="r",metric="inf"'] == -math.inf
    assert 2.0 in found.values()


def test_a_rule_that_complains_is_a_value() -> None:
    steps = [make_step(version, (), equal_group_share=1.0, all_right_share=1.0) for version in range(1, 11)]
    found = values(exposition(state_after(a_start(), *steps), 20.0))
    assert found["freerun_health", 'run="r",rule="equal_groups"'] == 3

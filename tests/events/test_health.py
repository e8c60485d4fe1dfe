"""The rules of health as a whole: they never raise, and what they advise exists."""

import math
import re
from pathlib import Path

import pytest
from health_runs import HEALTHY, a_start, an_eval, findings, grades, healthy_run, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_events import write

from freerun.config.load import key_types
from freerun.events import learning_rules, running_rules
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    EvalSkipped,
    GroupFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.health import LEVELS, RULES, examine
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader
from freerun.events.schema import Rewound
from freerun.types import Doing, EngineStats, StepResult

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 0.3, 0.99, 1.0, -1.0, 1e-320])
TIMES = st.floats(min_value=-10.0, max_value=1e6)
COUNTS = st.integers(min_value=0, max_value=10**9)
SMALL = st.integers(min_value=0, max_value=40)
METRICS = st.dictionaries(st.sampled_from([*HEALTHY, "reward/format"]), NUMBERS)
EVENTS: st.SearchStrategy[AnyEvent | Rewound] = st.one_of(
    st.builds(
        RunStarted, seconds=TIMES, name=st.just("r"), directory=st.just("runs/r"), num_steps=SMALL, version=SMALL,
        max_staleness=SMALL, group_size=SMALL, prompts_per_step=SMALL, grade_limit_seconds=TIMES,
        provenance=st.none(),
    ),
    st.builds(
        StepFinished, seconds=TIMES, groups=st.just(()), step_seconds=TIMES, wait_seconds=TIMES, queues=st.none(),
        result=st.builds(
            StepResult, version=SMALL, metrics=METRICS, trajectories=st.just(()),
            staleness_counts=st.dictionaries(SMALL, COUNTS, max_size=3),
        ),
    ),
    st.builds(an_eval, SMALL, NUMBERS, error=NUMBERS, seconds=TIMES),
    st.builds(EvalSkipped, seconds=TIMES, version=SMALL, reason=st.text(max_size=5)),
    st.builds(grades, COUNTS, num_failed=COUNTS, slowest_seconds=NUMBERS),
    st.builds(
        GroupFinished, seconds=TIMES, ordinal=SMALL, outcome=st.sampled_from(["buffered", "failed", "dropped"]),
        reason=st.text(max_size=5), prompt=st.none(), lost=st.just(()),
    ),
    st.builds(
        EngineReport, seconds=TIMES, worker=st.just("rollout-0"),
        stats=st.builds(EngineStats, num_tokens=COUNTS, num_steps=COUNTS, num_recomputed_tokens=COUNTS),
    ),
    st.builds(Activity, seconds=TIMES, worker=st.just("trainer"), doing=st.just(Doing("waiting", "rollouts"))),
    st.builds(WeightsLoaded, seconds=TIMES, version=SMALL, checksum=st.just("")),
    st.builds(CheckpointSaved, seconds=TIMES, version=SMALL, directory=st.just("d")),
    st.builds(
        WorkerDied, seconds=TIMES, worker=st.just("rollout-0"), reason=st.text(max_size=5),
        is_restarted=st.booleans(),
    ),
    st.builds(
        RunFinished, seconds=TIMES, outcome=st.just("finished"), reason=st.just(""), version=SMALL,
        model_directory=st.just(""),
    ),
    st.builds(Rewound, seconds=TIMES, version=SMALL, num_steps=SMALL),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, max_size=25), TIMES | st.just(math.inf))
def test_no_rule_ever_raises(events: list[AnyEvent | Rewound], now: float) -> None:
    state = RunState()
    for event in events:
        state(event)
    for moment in (state.seconds, now):
        found = examine(state, moment)
        assert [LEVELS.index(finding.level) for finding in found] == sorted(
            LEVELS.index(finding.level) for finding in found
        )
        assert all("nan" not in finding.text for finding in found)


def test_a_run_read_back_from_its_store_has_the_same_findings(tmp_path: Path) -> None:
    events = [a_start(), an_eval(0, 0.9), *steps(12, {"cut_off_share": 0.6}), an_eval(12, 0.3)]
    write(tmp_path, *events)
    with RunReader(tmp_path) as reader:
        read = list(reader.events())
    assert findings(read) == findings(events)  # type: ignore[arg-type]  # nothing was rewound
    assert {"cut_off", "held_out_fell"} <= findings(events).keys()


@pytest.mark.parametrize("module", [learning_rules, running_rules])
def test_every_setting_that_a_rule_advises_exists(module: object) -> None:
    sections = {key.partition(".")[0] for key in key_types()}
    assert hasattr(module, "__file__")
    with open(str(module.__file__)) as file:
        strings = re.findall(r'"[^"\n]*"|\'[^\'\n]*\'', file.read())
    named = {
        key
        for text in strings
        if not text.startswith('"{')
        for key in re.findall(r"\b([a-z]+\.[a-z_]+)\b", re.sub(r"\{[^}]*\}", "", text))
        if key.partition(".")[0] in sections
    }
    assert len(named) > 5
    assert named <= key_types().keys()


def test_each_rule_is_a_function_of_its_name() -> None:
    assert all(look.__name__ == rule for rule, look in RULES.items())


def test_examining_changes_nothing() -> None:
    state = RunState()
    for event in healthy_run():
        state(event)
    assert examine(state, state.seconds) == examine(state, state.seconds)

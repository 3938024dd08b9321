from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safebo import Box, Fixed, SafeOptimizer
from safebo.exceptions import InvalidValueError
from safebo.nesting import DEEPEST, READ, loads, whole
from safebo.runs import Campaign, Store
from safebo.runs.storage import Event

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def nested(levels: int) -> Any:
    value: Any = 1
    for i in range(levels):
        value = [value] if i % 2 else {"a": value}
    return value


def optimizer() -> SafeOptimizer:
    made = SafeOptimizer(Box({"kp": (0.0, 5.0)}), 0.0, norm=Fixed(5.0), cubes=None, points_per_axis=50)
    made.tell({"kp": 2.0}, 0.8)
    return made


@given(PLAIN)
def test_what_is_nested_as_usual_is_read_as_usual(value: Any) -> None:
    text = json.dumps([value] * 40)
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize("levels", [READ - 1, READ, READ + 1, 300, 900, 100_000])
def test_what_is_nested_too_deeply_becomes_text(levels: int) -> None:
    text = '["]"' + ',["[\\""' * levels + ',"é"' + "]" * (levels + 1)
    value, depth = loads(text), 0
    while isinstance(value, list):
        value, depth = value[-1], depth + 1
    assert depth == min(levels + 1, READ) and ("é" if levels < READ else '["[\\""') in value


def test_a_context_has_a_limit_of_depth_and_whole_characters() -> None:
    opt = optimizer()
    before = opt.state
    opt.tell({"kp": 2.1}, 0.8, context={"a": nested(DEEPEST - 1)})
    before = opt.state
    cycle: dict[str, Any] = {}
    cycle["a"] = cycle
    for wrong, what in (
        ({"a": nested(DEEPEST)}, "at most 32 levels"),
        ({"a": nested(5000)}, "at most 32 levels"),
        (cycle, "at most 32 levels"),
        ({"a": "\ud800"}, "half of one"),
        ({"\udfff": 1}, "half of one"),
        ({"a": ["\udc80"]}, "half of one"),
    ):
        with pytest.raises(InvalidValueError, match=what):
            opt.tell({"kp": 2.2}, 0.8, context=wrong)
        assert opt.state == before
    opt.tell({"kp": 2.2}, 0.8, context={"note": "Ω \U0001f600"})
    assert whole("\U0001f600") and SafeOptimizer.from_json(opt.state.to_json()).state == opt.state


@pytest.mark.parametrize("levels", [40, 500, 900])
def test_a_record_from_before_the_limit_is_still_read(tmp_path: Path, levels: int) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        campaign = Campaign.create(store, "line", optimizer())
        campaign.tell({"kp": 2.1}, 0.8, context={"a": 1})
        event = store.events("line")[-1]
        body = {**event.body, "sample": [*event.body["sample"][:4], {"a": nested(levels)}]}
        store.append("line", event.seq, [Event("told", body, "old")])
        again = Campaign.open(store, "line")
        assert len(again.ledger.state.samples) == 3
        trial = again.hand_out()
        assert trial is not None
        again.tell(trial.trial.id, 0.8)
        assert SafeOptimizer.from_json(again.optimizer.state.to_json()).state == again.optimizer.state

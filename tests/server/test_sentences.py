"""What the server says to a client that is stuck."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.runs import Campaign, RunConfig
from tests.server.conftest import Served


def of_clients(served: Served) -> None:
    plant = {"type": "http", "start": [{"a": 0.5}], "repeats": 1}
    optimizer = SafeOptimizer(
        Box({"a": (0.0, 1.0)}), 0.0, constraints={"heat": Constraint(upper=1.0)}, norm=Fixed(1.0), points_per_axis=30
    )
    Campaign.create(served.store, "h", optimizer, config=RunConfig(plant=plant, units={"a": "V"}))


def test_a_start_that_is_not_measured_says_how_to_tell_it(served: Served) -> None:
    of_clients(served)
    refused = served.operator.post("/runs/h/ask")
    detail = refused.json()["detail"]
    assert refused.status_code == 409 and "a = 0.5 V" in detail and "`safebo tell h --objective ... --limit heat=...`" in detail
    body = json.loads(re.search(r"POST /tell with (.*), or `", detail)[1].replace("...", "0.25"))  # type: ignore[index]
    assert served.viewer.get("/runs/h").json()["start"]["params"] == body["params"]
    assert served.operator.post("/runs/h/tell", json=body).status_code == 200
    assert served.operator.post("/runs/h/ask").json()["ready"]


def test_wrong_names_are_answered_with_the_right_ones(served: Served) -> None:
    of_clients(served)
    tell = {"params": {"a": 0.5}, "objective": 0.5}
    for body, said in (
        (tell, "`constraints` has a measured value for each of the limits ['heat']: missing ['heat']."),
        ({**tell, "constraints": {"haet": 0.1}}, "unknown ['haet'], missing ['heat']. Did you mean 'heat'?"),
        ({**tell, "params": {"b": 0.5}}, "The parameters are ['a']: unknown ['b'], missing ['a']."),
    ):
        answer = served.operator.post("/runs/h/tell", json=body)
        assert answer.status_code == 422 and said in answer.json()["detail"]
    assert served.operator.post("/runs/h/tell", json={**tell, "constraints": {"heat": 0.1}}).status_code == 200
    answer = served.viewer.get("/runs/h/slice", params={"x": "A"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "x, and y if it is given, are different parameters of ['a'], got 'A'."


def test_the_two_tables_are_told_apart(served: Served) -> None:
    run = served.create()
    header = served.viewer.get(f"{run}/export", params={"format": "csv"}).text.splitlines()[0]
    assert header == "number,kp,objective,trial,outside"
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    assert "number, parameters, outputs, trial, and 1 under `outside`" in page and "`safebo export` writes another one" in page

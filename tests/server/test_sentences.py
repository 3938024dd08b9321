"""What the server says to a client that is stuck."""

from __future__ import annotations

import json
import re

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

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest

from safebo import Box, Fixed, SafeOptimizer
from safebo.exceptions import ConflictError, InvalidValueError
from safebo.norms import AdaptiveScenario, PosteriorScenario
from safebo.runs import Campaign, RunConfig
from safebo.runs.driving import driving
from safebo.runs.starts import send_start
from safebo.server.models import Norm
from tests.server.conftest import Served, truth

pytestmark = pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning")


def experiment(served: Served, run: str) -> dict:
    asked = served.operator.post(f"{run}/ask")
    assert asked.status_code == 200, asked.text
    trial = asked.json()["trial"]
    told = served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
    assert told.status_code == 200, told.text
    return trial


def test_a_run_from_creation_to_best(served: Served) -> None:
    run = served.create()
    for _ in range(3):
        trial = experiment(served, run)
        assert trial["bounds"]["objective"]["lower"] >= 0.0
        assert trial["cube"]["kp"][0] <= trial["params"]["kp"] <= trial["cube"]["kp"][1]
    state = served.viewer.get(run).json()
    assert state["measurements"] == 4 and state["experiments"] == 3 and state["status"] == "running"
    assert state["parameters"] == [{"name": "kp", "low": 0.0, "high": 5.0, "unit": "V"}]
    assert state["pending"] is None and state["you"] == "vera" and state["role"] == "viewer"
    best = served.viewer.get(f"{run}/best").json()
    assert best["lower"] <= truth(best["params"]) <= best["upper"]
    kinds = [e["kind"] for e in served.viewer.get(f"{run}/events").json()["events"]]
    assert kinds == ["created"] + 3 * ["asked", "started", "told"]
    listed = served.viewer.get("/runs").json()["runs"]
    assert [line["name"] for line in listed] == ["line"] and listed[0]["measurements"] == 4


def test_the_name_of_a_token_is_who_did_it(served: Served) -> None:
    run = served.create()
    experiment(served, run)
    assert {e.who for e in served.store.events("line")} == {"olga"}


def test_any_name_of_a_run_is_only_a_name(served: Served) -> None:
    for name in ("a/b", "../../etc/passwd", "100 %", "%2e%2e", "ask", "Größe ✓", ";drop table safebo_runs"):
        served.create(name=name)
        path = "/runs/" + "".join(f"%{byte:02X}" for byte in name.encode())
        assert served.viewer.get(path).json()["name"] == name
        assert served.operator.post(f"{path}/ask").json()["ready"]
    assert served.viewer.get("/runs/%FF").status_code == 404
    assert served.viewer.get("/runs/none").status_code == 404
    assert served.viewer.get("/runs/a/b").status_code == 404


def test_a_trial_is_handed_out_once(served: Served) -> None:
    run = served.create()
    first = served.operator.post(f"{run}/ask", headers={"idempotency-key": "one"})
    again = served.operator.post(f"{run}/ask", headers={"idempotency-key": "one"})
    assert first.status_code == again.status_code == 200 and first.json() == again.json()
    for headers in ({}, {"idempotency-key": "two"}):
        other = served.operator.post(f"{run}/ask", headers=headers)
        assert other.status_code == 409
        assert other.json()["trial"]["id"] == first.json()["trial"]["id"]
        assert other.json()["options"] == ["tell", "abort", "retry"]
    trial = first.json()["trial"]
    assert served.operator.post(f"{run}/retry", json={"trial": trial["id"]}).status_code == 200
    assert served.operator.post(f"{run}/ask", headers={"idempotency-key": "one"}).status_code == 409
    anew = served.operator.post(f"{run}/ask", headers={"idempotency-key": "three"})
    assert anew.json()["trial"]["params"] == trial["params"]
    served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.8})
    late = served.operator.post(f"{run}/ask", headers={"idempotency-key": "three"})
    assert late.status_code == 409 and "not out any more" in late.json()["detail"]


def test_of_two_clients_that_tell_the_same_trial_one_wins(served: Served) -> None:
    run = served.create()
    for i in range(5):
        trial = served.operator.post(f"{run}/ask").json()["trial"]
        barrier, answers = threading.Barrier(2), []

        def tell(value: float, trial=trial, barrier=barrier, answers=answers) -> None:
            with served.client("operator-secret-000000") as client:
                barrier.wait()
                answers.append(client.post(f"{run}/tell", json={"trial": trial["id"], "objective": value}))

        threads = [threading.Thread(target=tell, args=(0.8 + 0.01 * k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(a.status_code for a in answers) == [200, 409]
        lost = next(a for a in answers if a.status_code == 409).json()["detail"]
        assert trial["id"] in lost and "already" in lost
        assert served.viewer.get(run).json()["measurements"] == i + 2


def test_two_servers_share_a_database(start) -> None:
    one, two = start(), start()
    run = one.create()
    trial = one.operator.post(f"{run}/ask").json()["trial"]
    assert two.operator.post(f"{run}/ask").status_code == 409
    assert two.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.9}).status_code == 200
    assert one.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.9}).status_code == 409
    assert one.operator.post(f"{run}/ask").json()["trial"]["id"] != trial["id"]


def test_a_retried_tell_counts_once(served: Served) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    body, key = {"trial": trial["id"], "objective": 0.9}, {"idempotency-key": "k1"}
    first = served.operator.post(f"{run}/tell", json=body, headers=key)
    again = served.operator.post(f"{run}/tell", json=body, headers=key)
    assert first.json() == {**again.json(), "repeated": False} and again.json()["repeated"]
    assert served.operator.post(f"{run}/tell", json={**body, "objective": 0.8}, headers=key).status_code == 409
    assert served.operator.post(f"{run}/ask", headers=key).status_code == 409
    assert served.viewer.get(run).json()["measurements"] == 2


def test_nothing_is_handed_out_without_the_approval_that_the_run_asks_for(served: Served) -> None:
    run = served.create(confirm=True)
    for _ in range(2):
        asked = served.operator.post(f"{run}/ask", headers={"idempotency-key": "a"})
        assert asked.status_code == 202 and not asked.json()["ready"] and "do not run it" in asked.json()["reason"]
    trial = asked.json()["trial"]
    assert trial["waiting"] and not trial["out"] and served.viewer.get("/runs").json()["runs"][0]["waiting"]
    early = served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.9})
    assert early.status_code == 409 and "not been handed out" in early.json()["detail"]
    assert served.viewer.post(f"{run}/approve", json={"trial": trial["id"]}).status_code == 403
    assert served.operator.post(f"{run}/approve", json={"trial": "another"}).status_code == 409
    assert served.operator.post(f"{run}/approve", json={"trial": trial["id"]}).status_code == 200
    assert served.operator.post(f"{run}/approve", json={"trial": trial["id"]}).status_code == 409
    ready = served.operator.post(f"{run}/ask", headers={"idempotency-key": "a"})
    assert ready.status_code == 200 and ready.json()["ready"]
    assert ready.json()["trial"]["approved_by"] == "olga" and ready.json()["trial"]["approved_at"]
    served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.9})
    rejected = served.operator.post(f"{run}/ask").json()["trial"]
    assert served.operator.post(f"{run}/reject", json={"trial": rejected["id"], "reason": "too fast"}).status_code == 200
    following = served.operator.post(f"{run}/ask").json()["trial"]
    assert following["params"] != rejected["params"]
    kinds = [(e.kind, e.who) for e in served.store.events("line") if e.kind in ("approved", "rejected", "started")]
    assert kinds == [("approved", "olga"), ("started", "olga"), ("rejected", "olga")]


def test_pause_resume_and_stop(served: Served) -> None:
    run = served.create()
    assert served.operator.post(f"{run}/pause", json={"reason": "coffee"}).json()["status"] == "paused"
    asked = served.operator.post(f"{run}/ask")
    assert asked.status_code == 200 and asked.json() == {"ready": False, "trial": None, "status": "paused", "reason": "coffee"}
    assert served.operator.post(f"{run}/pause").status_code == 409
    assert served.operator.post(f"{run}/resume").json()["status"] == "running"
    assert served.operator.post(f"{run}/resume").status_code == 409
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    assert served.operator.post(f"{run}/stop").json()["status"] == "stopped"
    told = served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": 0.9})
    assert told.status_code == 200 and told.json()["status"] == "stopped"
    assert served.operator.post(f"{run}/ask").json()["trial"] is None


def test_a_violation_stops_the_run(served: Served) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    told = served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": -0.5}).json()
    assert told["violated"] == {"objective": -0.5} and told["status"] == "stopped"
    state = served.viewer.get(run).json()
    assert state["violations"] == [2] and "check the rig" in state["advice"]
    assert [s["outside"] for s in served.viewer.get(f"{run}/samples").json()["measurements"]] == [False, True]
    assert served.operator.post(f"{run}/void", json={"number": 2, "reason": "a typing error"}).status_code == 200
    assert [s["outside"] for s in served.viewer.get(f"{run}/samples").json()["voided"]] == [True]


def test_pause_and_resume_know_what_was_seen(served: Served) -> None:
    run = served.create()
    seen = served.viewer.get(run).json()["seq"]
    Campaign.open(served.store, "line").stop("the rig smokes", who="anna")
    for verb in ("pause", "resume"):  # meant for the run that ran
        answer = served.operator.post(f"{run}/{verb}", json={"seen": seen})
        assert answer.status_code == 409 and "the rig smokes" in answer.json()["detail"], verb
    state = served.viewer.get(run).json()
    assert (state["status"], state["cause"]) == ("stopped", "stopped")
    assert served.operator.post(f"{run}/resume", json={"seen": state["seq"], "reason": "put out"}).status_code == 200
    assert served.viewer.get(run).json()["cause"] == ""
    assert served.operator.post(f"{run}/pause", json={"seen": state["seq"]}).status_code == 409
    for wrong in (-1, 1.5, "2", True, 2**40):
        assert served.operator.post(f"{run}/pause", json={"seen": wrong}).status_code == 422, wrong
    assert [e.kind for e in served.store.events("line")] == ["created", "stopped", "resumed"]


def test_a_violation_is_accepted_or_the_run_stays_stopped(served: Served) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": -0.5})
    state = served.viewer.get(run).json()
    assert (state["status"], state["cause"]) == ("stopped", "violation")
    for body in (None, {}, {"reason": "go"}, {"accept_violation": False, "seen": state["seq"]}):
        answer = served.operator.post(f"{run}/resume", json=body) if body is not None else served.operator.post(f"{run}/resume")
        assert answer.status_code == 409 and "violation" in answer.json()["detail"], body
    accepted = {"reason": "a loose cable", "accept_violation": True, "seen": state["seq"]}
    assert served.operator.post(f"{run}/resume", json=accepted).json()["status"] == "running"
    assert served.store.events("line")[-1].body == {"reason": "a loose cable", "accepted": True}


def test_a_key_of_ask_belongs_to_its_caller(served: Served) -> None:
    run, key = served.create(), {"idempotency-key": "exp-1"}
    first = served.operator.post(f"{run}/ask", headers=key)
    assert first.json()["ready"]
    other = served.rig.post(f"{run}/ask", headers=key)
    assert other.status_code == 409, other.text  # the same trial is not handed to two rigs
    assert served.operator.post(f"{run}/ask", headers=key).json() == first.json()
    assert [e.kind for e in served.store.events("line")] == ["created", "asked", "started"]


def test_a_measurement_is_taken_back(served: Served) -> None:
    run = served.create()
    experiment(served, run)
    wrong = served.operator.post(f"{run}/tell", json={"params": {"kp": 2.1}, "objective": 9.0}).json()
    seen = served.viewer.get(run).json()["seq"]
    assert seen == wrong["seq"]
    best = served.viewer.get(f"{run}/best").json()
    body = {"number": 3, "reason": "0.9, not 9", "seen": seen}
    assert (
        served.viewer.post(f"{run}/void", json=body).status_code == served.rig.post(f"{run}/void", json=body).status_code == 403
    )
    for refused, status in (({"number": 0}, 422), ({"number": 3, "reason": ""}, 422), ({"number": 7, "reason": "x"}, 409)):
        assert served.operator.post(f"{run}/void", json=refused).status_code == status, refused
    assert served.operator.post(f"{run}/void", json=body).json() == {"seq": seen + 1, "status": "running"}
    assert served.operator.post(f"{run}/void", json=body).status_code == 409
    found = served.viewer.get(f"{run}/samples").json()
    assert [m["number"] for m in found["measurements"]] == [1, 2]
    assert [(v["number"], v["values"], v["reason"], v["who"]) for v in found["voided"]] == [
        (3, {"objective": 9.0}, "0.9, not 9", "olga")
    ]
    assert served.viewer.get(f"{run}/best").json() != best
    experiment(served, run)
    found = served.viewer.get(f"{run}/samples", params={"after": 2}).json()
    assert [m["number"] for m in found["measurements"]] == [4]
    table = served.viewer.get(f"{run}/export", params={"format": "csv"}).text.splitlines()
    assert [line.partition(",")[0] for line in table] == ["number", "1", "2", "4"]
    state = served.viewer.get(run).json()
    assert state["voided"] == [3] and state["doubtful"] == [] and state["measurements"] == 3


def test_as_many_experiments_as_wanted(served: Served) -> None:
    run = served.create(experiments=1)
    experiment(served, run)
    assert served.operator.post(f"{run}/ask").json() == {
        "ready": False, "trial": None, "status": "finished", "reason": "All 1 experiments were made.",
    }  # fmt: skip


def test_abort_and_abandon_keep_experiments_away(served: Served) -> None:
    run = served.create()
    for verb, body in (("abort", {"reason": "arm blocked"}), ("abandon", {})):
        trial = served.operator.post(f"{run}/ask").json()["trial"]
        assert served.operator.post(f"{run}/{verb}", json={"trial": trial["id"], **body}).status_code == 200
        assert served.operator.post(f"{run}/{verb}", json={"trial": trial["id"], **body}).status_code == 409
    assert served.operator.post(f"{run}/abort", json={"params": {"kp": 4.9}, "reason": "smoke"}).status_code == 200
    reasons = [a["reason"] for a in served.viewer.get(f"{run}/samples").json()["aborted"]]
    assert reasons == ["arm blocked", "abandoned", "smoke"]


def test_several_limits_and_slices(served: Served) -> None:
    run = served.create(
        name="two",
        parameters={"kp": {"low": 0.0, "high": 5.0}, "kd": {"low": 0.0, "high": 1.0}},
        points_per_axis=20,
        threshold=None,
        constraints={"torque": {"lower": -2.0, "upper": 2.0, "unit": "Nm", "noise": 0.05}},
        initial=[{"params": {"kp": 2.0, "kd": 0.3}, "objective": 0.8, "constraints": {"torque": 0.1}}],
    )
    assert served.operator.post(f"{run}/tell", json={"params": {"kp": 2.1, "kd": 0.3}, "objective": 0.8}).status_code == 422
    line = served.viewer.get(f"{run}/slice", params={"x": "kp", "output": "torque", "at": ["kd:0.3"], "points": 51}).json()
    assert len(line["mean"]) == len(line["safe"]) == 51 and line["y"] is None and line["fixed"] == {"kd": 0.3}
    assert line["limits"] == {"lower": -2.0, "upper": 2.0} and any(line["safe"]) and not all(line["safe"])
    assert all(a <= b for a, b in zip(line["lower"], line["upper"], strict=True))
    plane = served.viewer.get(f"{run}/slice", params={"x": "kp", "y": "kd", "points": 11}).json()
    assert len(plane["mean"]) == 121 and any(plane["expanders"])
    for wrong in (
        {"x": "no"},
        {"x": "kp", "y": "kp"},
        {"x": "kp", "at": ["kp:1"]},
        {"x": "kp", "at": ["kd"]},
        {"x": "kp", "at": ["kd:nan"]},
        {"x": "kp", "output": "heat"},
        {"x": "kp", "y": "kd", "points": 82},
    ):
        assert served.viewer.get(f"{run}/slice", params=wrong).status_code == 422, wrong


def test_norms_over_time_are_those_of_the_trials(served: Served) -> None:
    run = served.create(norm={"type": "adaptive", "m": 300, "gamma": 0.05})
    trials = [experiment(served, run) for _ in range(3)]
    norms = served.viewer.get(f"{run}/norms").json()
    assert norms["measurements"] == 4
    for step, trial in enumerate(trials, 1):
        known = {
            (tuple(s["lower"]), norm)
            for s in norms["subdomains"]
            for at, norm in zip(s["steps"], s["norms"]["objective"], strict=True)
            if at <= step
        }
        low = trial["cube"]["kp"][0] / 5.0
        assert any(
            abs(corner[0] - low) < 1e-9 and norm == pytest.approx(trial["norms"]["objective"], rel=1e-5) for corner, norm in known
        )


def test_a_run_without_a_safe_measurement_waits_for_one(served: Served) -> None:
    run = served.create(initial=[])
    for answer in (served.operator.post(f"{run}/ask"), served.viewer.get(f"{run}/best"), served.viewer.get(f"{run}/norms"),
                   served.viewer.get(f"{run}/slice", params={"x": "kp"})):  # fmt: skip
        assert answer.status_code == 409 and "no safe measurement" in answer.json()["detail"]
    assert served.operator.post(f"{run}/tell", json={"params": {"kp": 2.0}, "objective": -1.0}).status_code == 422
    assert served.viewer.get(run).json()["status"] == "stopped"  # what was measured outside a limit is no start, whoever tells it
    assert served.operator.post(f"{run}/resume", json={"accept_violation": True}).status_code == 200
    assert served.operator.post(f"{run}/tell", json={"params": {"kp": 2.0}, "objective": 0.8}).status_code == 200
    assert served.operator.post(f"{run}/ask").json()["ready"]


def test_exports(served: Served) -> None:
    run = served.create()
    experiment(served, run)
    table = served.viewer.get(f"{run}/export", params={"format": "csv"})
    assert table.text.splitlines()[0] == "number,kp,objective,trial,outside" and len(table.text.splitlines()) == 3
    assert table.headers["content-type"].startswith("text/csv")
    record = served.viewer.get(f"{run}/export").json()
    assert [e["kind"] for e in record["events"]] == ["created", "asked", "started", "told"]
    assert served.viewer.get(f"{run}/export", params={"format": "pickle"}).status_code == 422


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"objective": float("nan")}, "objective"),
        ({"objective": 1e200}, "objective"),
        ({"objective": "0.8"}, "objective"),
        ({"objective": True}, "objective"),
        ({"objective": 0.8, "extra": 1}, "extra"),
        ({"objective": 0.8, "params": {"kp": 2.0}}, "exactly one"),
        ({"objective": 0.8, "context": {"a": float("inf")}}, "context"),
        ({"objective": 0.8, "context": {"a": "x" * 30_000}}, "context"),
        ({"objective": 0.8, "constraints": {"heat": 1.0}}, "heat"),
    ],
)
def test_a_refused_measurement_changes_nothing_and_says_why(served: Served, body: dict, what: str) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    before = served.store.last("line")
    content = json.dumps({"trial": trial["id"], **body})
    answer = served.operator.post(f"{run}/tell", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and what in answer.json()["detail"], answer.text
    assert served.store.last("line") == before


def test_what_is_not_json_is_refused(served: Served) -> None:
    run, headers = served.create(), {"content-type": "application/json"}
    for content in ("{", "[" * 100_000, "1" * 5000, '{"objective": 1', b"\xff\xfe", '{"objective": ' + "9" * 5000 + "}"):
        assert served.operator.post(f"{run}/tell", content=content, headers=headers).status_code in (400, 422)
    odd = served.operator.post(f"{run}/tell", content='{"trial": "\\ud800", "objective": 1}', headers=headers)
    assert odd.status_code == 422
    kept = served.operator.post(
        f"{run}/tell", content='{"params": {"kp": 2}, "objective": 1, "context": {"a": "\\ud800"}}', headers=headers
    )
    assert kept.status_code in (200, 422)
    assert served.viewer.get(f"{run}/samples").status_code == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"parameters": {}},
        {"parameters": {f"p{i}": {"low": 0, "high": 1} for i in range(9)}},
        {"parameters": {"kp": {"low": 1, "high": 0}}},
        {"threshold": None},
        {"points_per_axis": 2001},
        {"kernel": {"nu": 1.0}},
        {"kernel": {"lengthscale": [0.1, 0.2]}},
        {"norm": {"type": "fixed"}},
        {"norm": {"type": "adaptive", "m": 10}},
        {"initial": {"params": {"kp": 2.0}, "objective": -0.1}},
        {"initial": {"params": {"kp": 7.0}, "objective": 0.1}},
        {"seed": -1},
        {"plant": {"command": "rm -rf /"}},
    ],
)
def test_a_run_that_makes_no_sense_is_not_created(served: Served, changes: dict) -> None:
    from tests.server.conftest import LINE

    answer = served.operator.post("/runs", json={**LINE, **changes})
    assert answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json"
    assert served.store.names() == []


@pytest.mark.parametrize("levels", [33, 500, 900, 976, 5000, 100_000])
def test_what_is_nested_too_deeply_is_refused_and_changes_nothing(served: Served, levels: int) -> None:
    run = served.create()
    for field, begin, end in (("context", '{"a":' + "[" * levels, "]" * levels + "}"), ("objective", "[" * levels, "]" * levels)):
        content = f'{{"params": {{"kp": 2.0}}, "objective": 0.8, "{field}": {begin}1{end}}}'.encode()
        answer = served.operator.post(f"{run}/tell", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
        if field == "context":
            assert "nested" in answer.json()["detail"]
    assert served.store.last("line") == 1
    assert served.viewer.get(run).status_code == served.viewer.get(f"{run}/samples").status_code == 200


def test_odd_text_is_refused_in_words(served: Served) -> None:
    from tests.server.conftest import LINE

    run = served.create()
    json_type = {"content-type": "application/json"}
    for odd in ("\\ud800", "\\u0000", "\\u001b[2J", "\\udfff\\ud800"):
        for field in ("title", "unit", "name", "kp"):
            body = json.dumps({**LINE, "name": "other", "title": "title", "unit": "unit"})
            content = body.replace(
                f'"{field}": "{field}"' if field != "kp" else "kp", f'"{field}": "{odd}"' if field != "kp" else odd
            )
            content = content.replace('"name": "other"', f'"name": "{odd}"') if field == "name" else content
            answer = served.operator.post("/runs", content=content, headers=json_type)
            assert answer.status_code == 422, (odd, field, answer.text)
    for content in (b'{"reason": "\xff\xfe"}', '{"reason": "\u00e4"}'.encode("latin-1"), b"\xff"):
        answer = served.operator.post(f"{run}/pause", content=content, headers=json_type)
        assert answer.status_code == 422 and "UTF-8" in answer.json()["detail"], answer.text
    context = '{"params": {"kp": 2.0}, "objective": 0.8, "context": {"note": "\\ud800"}}'
    answer = served.operator.post(f"{run}/tell", content=context, headers=json_type)
    assert answer.status_code == 422 and "half of one" in answer.json()["detail"]
    assert served.store.last("line") == 1 and served.store.names() == ["line"]


def test_a_name_is_taken_once(served: Served) -> None:
    from tests.server.conftest import LINE

    served.create()
    assert served.operator.post("/runs", json=LINE).status_code == 409


# -- streams -------------------------------------------------------------------------------------------------------------


def stream(client: httpx.Client, run: str, **options) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    with client.stream("GET", f"{run}/events/stream", **options) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        number = 0
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            if line.startswith("data: "):
                content = json.loads(line[6:])
                assert content["seq"] == number
                found.append((number, content["kind"]))
    return found


def test_a_stream_goes_on_where_it_was_interrupted(served: Served) -> None:
    run = served.create()
    experiment(served, run)
    assert stream(served.viewer, run, params={"seconds": 0}) == [(1, "created"), (2, "asked"), (3, "started"), (4, "told")]
    assert stream(served.viewer, run, params={"seconds": 0}, headers={"last-event-id": "3"}) == [(4, "told")]
    assert stream(served.viewer, run, params={"seconds": 0, "after": 2}) == [(3, "started"), (4, "told")]
    assert served.viewer.get("/runs/none/events/stream").status_code == 404


def test_a_stream_brings_what_another_process_writes(served: Served) -> None:
    run = served.create()
    found: list[tuple[int, str]] = []
    listener = threading.Thread(target=lambda: found.extend(stream(served.viewer, run, params={"seconds": 3, "after": 1})))
    listener.start()
    time.sleep(0.5)
    Campaign.open(served.store, "line").pause("from elsewhere")
    served.operator.post(f"{run}/resume")
    listener.join()
    assert found == [(2, "paused"), (3, "resumed")]
    assert served.server.config.loaded_app is not None


def test_no_more_streams_than_allowed(start) -> None:
    from safebo.server import Limits

    served = start(limits=Limits(rate=0.0, streams=1))
    run = served.create()
    with served.viewer.stream("GET", f"{run}/events/stream", params={"seconds": 5}) as first:
        chunks = first.iter_raw()
        next(chunks)
        assert served.viewer.get(f"{run}/events/stream", params={"seconds": 1}).status_code == 429


def test_stop_does_not_wait_for_a_computation(served: Served) -> None:
    run = served.create(parameters={f"p{i}": {"low": 0.0, "high": 1.0} for i in range(4)}, norm={"type": "adaptive"},
                        points_per_axis=None, kernel={"lengthscale": 0.3},
                        initial={"params": {f"p{i}": 0.5 for i in range(4)}, "objective": 0.9})  # fmt: skip
    answers = []
    asking = threading.Thread(target=lambda: answers.append(served.operator.post(f"{run}/ask")))
    asking.start()
    time.sleep(0.05)
    with served.client("operator-secret-000000") as other:
        stopped = other.post(f"{run}/stop")
    assert stopped.status_code == 200
    asking.join()
    events = [e.kind for e in served.store.events("line")]
    assert events.index("stopped") < len(events) and events.count("started") <= 1
    if "started" not in events:  # the stop came while it was computed: nothing goes out
        assert answers[0].json()["trial"] is None and answers[0].json()["status"] == "stopped"


def test_a_start_is_approved_here_and_sent_by_the_runner(served: Served) -> None:
    optimizer = SafeOptimizer(Box({"kp": (0.0, 5.0)}), 0.0, norm=Fixed(5.0), cubes=None, points_per_axis=50)
    config = RunConfig(confirm=True, plant={"start": [{"kp": 2.0}], "repeats": 2})
    campaign = Campaign.create(served.store, "rig", optimizer, config=config)
    shown = served.viewer.get("/runs/rig").json()["start"]
    assert (shown["params"], shown["number"], shown["repeats"], shown["waiting"]) == ({"kp": 2.0}, 1, 2, True)
    assert served.viewer.get("/runs").json()["runs"][0]["waiting"]
    with pytest.raises(ConflictError, match="not approved"):
        send_start(campaign)
    assert served.viewer.post("/runs/rig/approve", json={"trial": shown["id"]}).status_code == 403
    assert served.operator.post("/runs/rig/approve", json={"trial": "start-0000000000"}).status_code == 409
    assert served.operator.post("/runs/rig/approve", json={"trial": shown["id"]}).status_code == 200
    shown = served.viewer.get("/runs/rig").json()["start"]
    assert shown["approved_by"] == "olga" and not shown["waiting"]
    assert send_start(campaign) == {"kp": 2.0}
    assert served.operator.post("/runs/rig/approve", json={"trial": shown["id"]}).status_code == 409
    campaign.tell({"kp": 2.0}, 0.8)
    second = served.viewer.get("/runs/rig").json()["start"]
    assert second["number"] == 2 and second["waiting"] and second["id"] != shown["id"]
    campaign.tell({"kp": 2.0}, 0.8)
    assert served.viewer.get("/runs/rig").json()["start"] is None


def test_norms_of_the_api_are_those_of_the_library() -> None:
    assert Norm().build() == AdaptiveScenario()
    assert Norm(type="posterior", m=600).build() == PosteriorScenario(m=600)
    assert Norm(floor="posterior").build() == AdaptiveScenario(floor=PosteriorScenario())
    with pytest.raises(InvalidValueError, match=r"A posterior norm has no alpha_bar and no floor, got .*'alpha_bar': 2\.0"):
        Norm(type="posterior", alpha_bar=2.0).build()
    with pytest.raises(InvalidValueError, match=r"no floor, got .*'floor': 'posterior'"):
        Norm(type="posterior", floor="posterior").build()


def test_who_drives_a_run(served: Served) -> None:
    run = served.create()
    fresh = served.viewer.get(run).json()
    assert (fresh["status"], fresh["driver"], fresh["asked_at"]) == ("running", "", None)
    assert fresh["standing"] == {"word": "open", "text": "a Python program, or clients over HTTP, may ask; nobody has asked yet"}
    served.operator.post(f"{run}/ask")
    asked = served.viewer.get(run).json()
    assert asked["asked_at"] == asked["pending"]["started_at"] and asked["asked_at"] in asked["standing"]["text"]
    Campaign.open(served.store, "line").configure(plant={"type": "manual"})
    assert served.viewer.get(run).json()["standing"]["text"] == "nobody drives it; `safebo resume line` goes on"
    with driving(Campaign.open(served.store, "line")):
        time.sleep(1.1)  # it is not asked again for a second
        driven = served.viewer.get(run).json()
        assert driven["driver"].startswith("process ") and driven["standing"]["word"] == "running"
        assert served.viewer.get("/runs").json()["runs"][0]["driver"] == driven["driver"]


def test_what_was_taken_back_and_rejected(served: Served) -> None:
    run = served.create()
    for _ in range(2):
        trial = served.operator.post(f"{run}/ask").json()["trial"]
        served.operator.post(f"{run}/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
    campaign = Campaign.open(served.store, "line")
    rejected = campaign.ask()
    assert rejected is not None
    campaign.reject(rejected.trial.id, "too fast")
    campaign.void(2, "a typing error", who="anna")
    found = served.viewer.get(f"{run}/samples").json()
    assert [m["number"] for m in found["measurements"]] == [1, 3]
    assert [m["doubtful"] for m in found["measurements"]] == [False, True]
    (gone,) = found["voided"]
    assert (gone["number"], gone["reason"], gone["who"]) == (2, "a typing error", "anna")
    (aborted,) = found["aborted"]
    assert (aborted["rejected"], aborted["after"], aborted["reason"]) == (True, 3, "rejected: too fast")
    assert [m["number"] for m in served.viewer.get(f"{run}/samples?after=1").json()["measurements"]] == [3]
    assert served.viewer.get(run).json()["doubtful"] == sorted(campaign.ledger.doubtful)
    events = served.viewer.get(f"{run}/events").json()["events"]
    assert [e["number"] for e in events if e["kind"] == "told"] == [2, 3]
    assert all(e["text"] for e in events)
    table = served.viewer.get(f"{run}/export?format=csv").text.splitlines()
    assert [line.split(",")[0] for line in table] == ["number", "1", "3"]


def test_a_slice_is_refined_around_the_trial(served: Served) -> None:
    run = served.create()
    trial = served.operator.post(f"{run}/ask").json()["trial"]
    found = served.viewer.get(f"{run}/slice", params={"x": "kp", "points": 4}).json()
    xs = found["x"]["values"]
    assert trial["params"]["kp"] in xs and 2.0 in xs and xs == sorted(xs)
    assert found["safe"][xs.index(trial["params"]["kp"])] and found["safe"][xs.index(2.0)]
    assert len(found["mean"]) == len(found["safe"]) == len(xs)

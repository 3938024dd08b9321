"""Export and import: what is written can be read again, and what is wrong in a file is named before anything is stored."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.exceptions import InvalidValueError
from safebo.report.html import html_report
from safebo.runs import Campaign, RunConfig, Store
from safebo.runs.starts import approve_start, send_start
from safebo.runs.transfer import experiments, from_csv, from_json, read_measurements, to_csv, to_document


def optimizer(names=("a",)):
    return SafeOptimizer(
        Box(dict.fromkeys(names, (0.0, 1.0))), 0.0, norm=Fixed(1.0), points_per_axis=20, min_width=0.01,
        constraints={"heat": Constraint(upper=1.0)},
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    with Store.open(tmp_path / "x.db") as store:
        made = Campaign.create(store, "run", optimizer(), config=RunConfig(on_violation="continue", confirm=True))
        made.tell({"a": 0.5}, 1 / 3, {"heat": 0.1}, context={"room": "7"}, who="=cmd()")
        for outcome in ("told", "rejected", "aborted", "outside"):
            pending = made.ask()
            if outcome == "rejected":
                made.reject(pending.trial.id, "too hot", who="bert")
                continue
            made.approve(pending.trial.id, who="anna")
            made.start(pending.trial.id)
            if outcome == "aborted":
                made.abort(pending.trial.id, 'the "arm", it broke')
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made.tell(pending.trial.id, 0.4, {"heat": 0.2 if outcome == "told" else 1.5})
        yield made


def test_experiments_of_a_record(run):
    found = experiments(run.ledger, run.events())
    assert [e.kind for e in found] == ["measured", "measured", "rejected", "aborted", "measured"]
    assert [e.inside for e in found] == [True, True, None, None, False]
    assert found[0].trial is None
    assert found[1].approved[0] == "anna"
    assert found[2].approved is None
    assert set(found[1].trial.bounds) == {"objective", "heat"}


def test_a_row_per_experiment(run):
    rows = list(csv.DictReader(io.StringIO(to_csv(run.ledger, run.events()))))
    assert [row["kind"] for row in rows] == ["measured", "measured", "rejected", "aborted", "measured"]
    assert rows[0]["objective"] == repr(1 / 3)
    assert rows[0]["who"] == "'=cmd()"  # not a formula in a spreadsheet
    assert json.loads(rows[0]["context"]) == {"room": "7"}
    assert rows[1]["approved_by"] == "anna"
    assert float(rows[1]["heat.lower"]) <= float(rows[1]["heat.upper"])
    assert rows[3]["reason"] == 'the "arm", it broke'
    assert [row["inside"] for row in rows] == ["yes", "yes", "", "", "no"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_is_written_can_be_read(run, tmp_path, form):
    text = to_csv(run.ledger, run.events()) if form == "csv" else json.dumps(to_document(run.ledger, run.events()))
    (tmp_path / f"x.{form}").write_text(text)
    rows = read_measurements(tmp_path / f"x.{form}", run.ledger.state.settings)
    state = run.ledger.state
    assert [r[0]["a"] for r in rows] == [s.point[0] for s in state.samples]
    assert [(r[1], r[2]["heat"]) for r in rows] == [s.values for s in state.samples]
    assert [r[3] for r in rows] == [{"room": "7"}, None, None]
    other = Campaign.create(run.store, "other", optimizer())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.tell_many(rows)
    assert other.ledger.state.values().tolist() == state.values().tolist()


def test_everything_is_in_the_json(run):
    content = json.loads(json.dumps(to_document(run.ledger, run.events()), allow_nan=False))
    assert len(content["events"]) == run.ledger.seq
    assert SafeOptimizer.from_json(json.dumps(content["state"])).state == run.ledger.state
    assert content["config"]["confirm"] is True


def test_parameters_may_be_called_like_columns(tmp_path):
    with Store.open(tmp_path / "y.db") as store:
        made = Campaign.create(store, "run", optimizer(("who", "kind")))
        made.tell({"who": 0.5, "kind": 0.25}, 0.5, {"heat": 0.0}, who="anna", context={"x": 1})
        text = to_csv(made.ledger, made.events())
        row = next(csv.DictReader(io.StringIO(text)))
        assert (row["who"], row["safebo.who"], row["kind"], row["safebo.kind"]) == ("0.5", "anna", "0.25", "measured")
        rows = from_csv(text, made.ledger.state.settings)
    assert rows == [({"who": 0.5, "kind": 0.25}, 0.5, {"heat": 0.0}, {"x": 1})]


SETTINGS = optimizer().state.settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x:1: the columns must be named \['a', 'objective', 'heat'\].*missing \['a', 'objective', 'heat'\]"),
        ("a,objective\n", r"missing \['heat'\]"),
        ("a,objective,heat,b\n", r"unknown \['b'\]"),
        ("a,objective,heat,a\n", "some twice"),
        ("a,objective,heat\n0.5,0.1,0.2\n0.5,x,0.2\n", "x:3: objective must be a number, got 'x'"),
        ("a,objective,heat\n0.5,nan,0.2\n", "x:2: objective must be a finite number"),
        ("a,objective,heat\n7,0.1,0.2\n", "x:2: Parameter 'a' = 7.0 lies outside"),
        ("a,objective,heat\n0.5,0.1\n", "x:2: the row must have 3 values"),
        ("a,objective,heat\n0.5,0.1,0.2,0.3\n", "x:2: the row must have 3 values"),
        ("a,objective,heat,context\n0.5,0.1,0.2,[]\n", "x:2: the context must be a JSON object"),
        ('a,objective,heat\n0.5,0.1,"0.2\n', "not a CSV file|must be a number"),
    ],
)
def test_wrong_tables(text, message):
    with pytest.raises(InvalidValueError, match=message):
        from_csv(text, SETTINGS, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "x is not JSON"),
        ("3", "must hold a list"),
        ('{"a": 1}', "must hold a list"),
        ("[3]", "measurement 1 must have"),
        ('[{"params": {"a": 0.5}, "objective": 1, "constraints": {"heat": 0}, "y": 1}]', "measurement 1 must have"),
        ('[{"params": {"a": 0.5}, "objective": 1}]', r"constraints are \['heat'\]"),
        (('[{"params": {"a": 0.5}, "objective": 1, "constraints": {"heat": 0}}, {"params": {"a": 9}, "objective": 1, '
         '"constraints": {"heat": 0}}]'), "measurement 2: Parameter 'a' = 9"),
        ('[{"params": {"a": 0.5}, "objective": NaN, "constraints": {"heat": 0}}]', "finite"),
        ('[{"params": {"a": 0.5}, "objective": 1, "constraints": {"heat": 0}, "context": 3}]', "measurement 1: A context"),
    ],
)  # fmt: skip
def test_wrong_json(content, message):
    with pytest.raises(InvalidValueError, match=message):
        from_json(content, SETTINGS, "x")


def test_tables_of_spreadsheets(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf a , objective,heat\r\n0.5,0.1,0.2\r\n")
    assert read_measurements(tmp_path / "x.csv", SETTINGS) == [({"a": 0.5}, 0.1, {"heat": 0.2}, None)]
    (tmp_path / "y.csv").write_bytes(b"\xff\xff")
    with pytest.raises(InvalidValueError, match="UTF-8"):
        read_measurements(tmp_path / "y.csv", SETTINGS)


@given(st.text('abheatobjective,"\n0.5[]{}:', max_size=60))
def test_no_text_ends_in_anything_but_an_error_of_ours(text):
    for read in (from_csv, from_json):
        with contextlib.suppress(InvalidValueError):
            read(text, SETTINGS)


def test_who_approved_a_start(tmp_path):
    with Store.open(tmp_path / "x.db") as store:
        opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(1.0), points_per_axis=30)
        run = Campaign.create(store, "run", opt, config=RunConfig(confirm=True, plant={"start": [{"a": 0.5}], "repeats": 2}))
        for who in ("anna", "bert"):
            approve_start(run, who)
            send_start(run, "rig")
            run.tell({"a": 0.5}, 0.8)
        run.tell({"a": 0.5}, 0.7)
        assert [e.approved and e.approved[0] for e in experiments(run.ledger, run.events())] == ["anna", "bert", None]
        text = html_report(run.optimizer, run.ledger, run.events())
        assert text.count("was handed out</td><td>rig") == 4  # among the decisions, and in the whole record
        assert all(f"was approved</td><td>{who}" in text for who in ("anna", "bert"))

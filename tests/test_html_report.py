"""The HTML report: complete, self-contained, and safe to open whatever people and plants wrote."""

from __future__ import annotations

import base64
import re
import warnings
from html.parser import HTMLParser

import pytest

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.exceptions import MissingExtraError
from safebo.report import plot_norms, plot_progress
from safebo.report.html import html_report
from safebo.runs import Campaign, Follower, RunConfig, Store
from safebo.runs.transfer import experiments, to_csv

EVIL = "<script>alert(1)</script>\"'&"


class Tags(HTMLParser):
    """Checks that every tag is closed, and collects attributes and text."""

    VOID = ("meta", "br", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def optimizer(dim=1):
    names = "abcd"[:dim]
    return SafeOptimizer(
        Box(dict.fromkeys(names, (0.0, 1.0))), 0.0, norm=Fixed(1.0), points_per_axis=15, min_width=0.01,
        constraints={"heat": Constraint(upper=1.0)},
    )  # fmt: skip


def rendered(campaign):
    follower = Follower(campaign.store, campaign.name)
    return html_report(follower.optimizer(), follower.ledger, campaign.events())


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "x.db") as opened:
        yield opened


@pytest.fixture
def run(store):
    config = RunConfig(title=EVIL, units={"a": "<i>V</i>", "heat": "K"}, notes=EVIL, confirm=True, on_violation="continue")
    made = Campaign.create(store, EVIL, optimizer(), config=config, source=f"[run] # {EVIL}", who=EVIL)
    made.tell({"a": 0.5}, 0.5, {"heat": 0.2}, context={EVIL: EVIL}, who=EVIL)
    for outcome in ("told", "aborted", "outside", "rejected"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = made.ask().trial.id
            if outcome == "rejected":
                made.reject(trial, EVIL, who=EVIL)
                continue
            made.approve(trial, who="anna")
            made.start(trial)
            if outcome == "aborted":
                made.abort(trial, EVIL)
            else:
                made.tell(trial, 0.55, {"heat": 0.3 if outcome == "told" else 7.0})
    made.pause(EVIL, who=EVIL)
    return made


def test_everything_is_in_it(run):
    text = rendered(run)
    tags = Tags(text)
    for words in (
        "Best parameters", "Safety record", "Approvals, stops and decisions", "What is guaranteed", "How to reproduce",
        "2 certified experiments were measured, 1 of them outside a limit", "anna", "one certificate", "Fixed(value=1.0)",
        run.events()[-1].digest, "was approved", "The run was paused", "The whole record",
    ):  # fmt: skip
        assert words in tags.words, words
    assert not re.search(r"\d:\d\d\.\d", tags.words)  # no fractions of seconds, but where one points
    assert ("title", run.events()[0].at) in tags.attributes
    assert "aborted" in tags.words and "rejected" in tags.words
    assert tags.tags.count("img") == 4  # progress, norms, and a slice of each output
    assert "violation" in dict(tags.attributes).values() or ("class", "violation") in tags.attributes
    for name, value in tags.attributes:
        if name == "src":
            assert base64.b64decode(value.removeprefix("data:image/png;base64,"))[:4] == b"\x89PNG"
        assert name != "href"
        assert not name.startswith("on")


def test_nothing_that_people_wrote_is_markup(run):
    text = rendered(run)
    assert "<script" not in text
    assert "<i>" not in text
    tags = Tags(text)
    assert "script" not in tags.tags
    assert EVIL in tags.words
    assert not re.search(r"https?://|url\(|@import", text)


def test_a_run_without_measurements(store):
    made = Campaign.create(store, "empty", optimizer())
    tags = Tags(rendered(made))
    assert "There is no safe measurement yet" in tags.words
    assert "img" not in tags.tags


def test_many_parameters(store):
    made = Campaign.create(store, "many", optimizer(3))
    made.tell({"a": 0.5, "b": 0.5, "c": 0.5}, 0.5, {"heat": 0.2})
    tags = Tags(rendered(made))
    assert tags.tags.count("img") == 1 + 2 * (2 + 3)  # two maps and three lines of each output; no trial yet, so no norms


def test_without_matplotlib(run, monkeypatch):
    def missing(*_, **__):
        raise MissingExtraError("Figures need matplotlib: pip install '.[plot]'.")

    monkeypatch.setattr("safebo.report.html.plot_progress", missing)
    assert ".[plot]" in Tags(rendered(run)).words


def test_certificates_and_norms_are_drawn(run):
    trials = [e.trial for e in experiments(run.ledger, run.events()) if e.trial is not None]
    opt = Follower(run.store, run.name).optimizer()
    figure = plot_progress(opt, trials={trial.id: trial for trial in trials})
    drawn = [c for ax in figure.axes for c in ax.collections if c.get_gid() == "certificate"]
    assert [len(c.get_segments()) for c in drawn] == [2, 2]
    axes = plot_norms(trials).axes[0]
    assert [line.get_label() for line in axes.lines][:2] == ["objective", "heat"]
    assert len(axes.lines[0].get_xdata()) == 4
    refuted = sum(len(t.refutations) for t in trials)
    assert len(axes.lines) == 2 + refuted
    assert plot_norms([]).axes
    ticks = plot_norms(trials[:1]).axes[0].get_xticks()
    assert all(tick == round(tick) for tick in ticks)


def test_what_was_taken_back_is_crossed_out(store):
    made = Campaign.create(store, "run", optimizer(), config=RunConfig(units={"heat": "K"}))
    made.tell({"a": 0.5}, 0.5, {"heat": 0.2})
    for value in (0.56, 0.55):
        trial = made.ask().trial
        made.start(trial.id)
        made.tell(trial.id, value, {"heat": 0.25})
    made.void(2, "a typing error", who="anna")
    tags = Tags(rendered(made))
    assert "Measurement 2 was taken back: a typing error" in tags.words
    assert "taken back: a typing error" in tags.words and "2 0.5600" not in tags.words
    assert tags.tags.count("s") == 2 and ("class", "voided") in tags.attributes  # both of its values
    assert "1 experiment(s) were certified with a measurement that was taken back later (†)" in tags.words
    assert "1 taken back" in tags.words
    rows = to_csv(made.ledger, made.events()).splitlines()
    assert [row.split(",")[3] for row in rows[1:]] == ["measured", "voided", "measured"]
    assert [row.split(",")[-2:] for row in rows[1:]] == [["1", ""], ["2", ""], ["3", "yes"]]


def test_the_verdict_is_that_of_the_rows_below_it(store):
    made = Campaign.create(store, "run", optimizer(), config=RunConfig(on_violation="continue"))
    made.tell({"a": 0.5}, 0.5, {"heat": 0.2})
    first = Tags(rendered(made))
    assert "No certified experiment was measured." in first.words and ("class", "note good") not in first.attributes
    assert "†" not in first.words and "noise standard deviations" not in first.words
    assert (
        "All settings of the algorithm are the defaults" in first.words or "Settings of the algorithm that are not" in first.words
    )
    trial = made.ask().trial
    made.start(trial.id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.tell(trial.id, 0.5, {"heat": 64.0})
    assert "1 certified experiment was measured, 1 of them outside a limit" in Tags(rendered(made)).words
    made.void(2, "a typing error", who="anna")
    tags = Tags(rendered(made))
    assert "No certified experiment was measured. 1 measurement was outside a limit and taken back." in tags.words
    assert ("class", "note good") not in tags.attributes
    assert (
        "* lies further outside its certified interval than 3 noise standard deviations." in tags.words and "64 *" in tags.words
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.tell({"a": 0.9}, 0.5, {"heat": 2.9})
    tags = Tags(rendered(made))
    assert "1 measurement that nobody had asked for was outside a limit." in tags.words and "NO" in tags.text
    assert ("class", "note bad") in tags.attributes

"""A run as one HTML file: results, figures, the safety record, settings and what is guaranteed.

Everything is inside the file: pictures as data, no scripts, nothing loaded from elsewhere. Whatever comes from a person or a
plant is escaped. It follows the reader's light or dark theme and prints in black on white.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from safebo.exceptions import MissingExtraError, NoInitialSampleError, NormRefutedWarning
from safebo.optimizer import Best, SafeOptimizer
from safebo.outputs import Output, guarantee
from safebo.report.html_style import CSS
from safebo.report.norms import plot_norms
from safebo.report.progress import plot_progress
from safebo.report.state_plots import plot_slice
from safebo.runs import describe, words
from safebo.runs.doubts import NOISES, surprising
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Event
from safebo.runs.transfer import Experiment, experiments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOUBT = "†"
"""Marks a certificate that rested on a measurement that was taken back later."""

SURPRISE = "*"
"""Marks a value further outside its certified interval than noise explains."""

SLICES = 8
"""One-dimensional slices shown at most, per output."""


def html_report(
    optimizer: SafeOptimizer, ledger: Ledger, events: Sequence[Event], *, on_step: Callable[[str], object] = lambda _: None
) -> str:
    """The report of a run as the text of an HTML file; `on_step` hears which part is being made."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NormRefutedWarning)  # it was issued when it happened
            best = optimizer.best()
    except NoInitialSampleError:
        best = None
    page = _Page(optimizer, ledger, events, experiments(ledger, events), best)
    title = escape(ledger.config.title or ledger.name)
    on_step("figures")
    parts = [
        page.head(), page.summary(), page.result(), page.figures(on_step), page.safety(), page.other_events(), page.promise(),
        page.settings(), page.reproduce(),
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(header: Iterable[str], rows: Iterable[Iterable[str]], classes: Iterable[str] = (), numbers: bool = True) -> str:
    """An HTML table from cells that are HTML already; `classes` are those of the rows."""
    marks = iter(classes)
    body = []
    for row in rows:
        mark = next(marks, "")
        body.append(f"<tr{f' class={mark!r}' if mark else ''}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    head = "".join(f"<th>{cell}</th>" for cell in header)
    kind = ' class="numbers"' if numbers else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def clock(stamp: str, zone: bool = False) -> str:
    """A time of the record to the second, in UTC; in full where one points at it."""
    shown = words.moment(stamp) if zone else words.moment(stamp).removesuffix(" UTC")
    parts = " ".join(f"<span>{escape(part)}</span>" for part in shown.split(" "))
    return f'<time datetime="{escape(stamp)}" title="{escape(stamp)}">{parts}</time>'


@dataclass(frozen=True)
class _Page:
    optimizer: SafeOptimizer
    ledger: Ledger
    events: Sequence[Event]
    made: list[Experiment]
    best: Best | None

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.ledger.state.outputs

    @property
    def units(self) -> dict[str, str]:
        return self.ledger.config.units

    def named(self, name: str) -> str:
        """A parameter or output with its unit."""
        unit = self.units.get(name)
        return escape(name) + (f' <span class="unit">{escape(unit)}</span>' if unit else "")

    # -- parts ----------------------------------------------------------------------------------------------------------

    def head(self) -> str:
        ledger, created = self.ledger, self.ledger.created
        title = escape(ledger.config.title or ledger.name)
        last = self.events[-1]
        status = {"running": "not finished"}.get(ledger.status, ledger.status)  # a file does not know who drives the run
        mood = "bad" if ledger.violations else {"running": "good", "finished": "good"}.get(ledger.status, "warn")
        notes = f"<p>{escape(ledger.config.notes)}</p>" if ledger.config.notes else ""
        reason = f"<p>{escape(ledger.reason)}</p>" if ledger.reason else ""
        return (
            f'<header><h1>{title} <span class="badge {mood}">{escape(status)}</span></h1>'
            f'<p class="quiet">Run {escape(repr(ledger.name))}, begun {clock(created.at, True)} by {escape(created.who)}, '
            f"last entry {clock(last.at, True)}, safebo {escape(str(created.body.get('version', '')))}</p>"
            f"{reason}{notes}</header>"
        )

    def summary(self) -> str:
        state, ledger = self.ledger.state, self.ledger
        given = guarantee(self.outputs)
        planned = "" if ledger.config.experiments is None else f" of {ledger.config.experiments}"
        aborted = sum(e.kind == "aborted" for e in self.made)
        rejected = sum(e.kind == "rejected" for e in self.made)
        cards = [
            ("experiments", f"{ledger.experiments}{planned}", ""),
            ("measurements", str(state.step), ""),
            ("outside a limit", str(len(ledger.violations)), "bad" if ledger.violations else "good"),
            ("aborted", str(aborted), "warn" if aborted else ""),
            ("rejected", str(rejected), ""),
            *([("taken back", str(len(ledger.voided)), "warn")] if ledger.voided else []),
            ("probability of a certificate", describe.percent(given.probability), ""),
        ]
        body = "".join(f'<div class="card {mood}"><b>{escape(value)}</b>{escape(name)}</div>' for name, value, mood in cards)
        return f'<section class="cards">{body}</section>'

    def result(self) -> str:
        if self.best is None:
            return "<section><h2>Result</h2><p>There is no safe measurement yet.</p></section>"
        best, domain = self.best, self.ledger.state.settings.domain
        rows = [[self.named(n), f"<b>{v:.6g}</b>", f"{low:g}", f"{high:g}"] for (n, v), (low, high) in zip(
            best.params.items(), domain.bounds.values(), strict=True)]  # fmt: skip
        unit = self.ledger.config.units.get("objective", "")
        value = describe.with_unit(f"{best.mean:.4g}", unit)
        safe = [e for e in self.made if e.inside and e.kind == "measured"]
        top = max(safe, key=lambda e: e.values["objective"], default=None)
        measured = ""
        if top is not None:
            at = escape(words.values_text(top.params, self.units, 6))
            outs = escape(words.values_text(top.values, self.units, 4))
            measured = f"<p>Best measurement inside every limit: {outs} at {at}.</p>"
        return (
            "<section><h2>Best parameters</h2>"
            + table(["parameter", "best", "from", "to"], rows)
            + f"<p>Objective there: expected {escape(value)}, certified between {best.lower:.4g} and {best.upper:.4g}. These are "
            "the best parameters measured inside all limits, or certified ones that are surely better.</p>"
            + measured
            + "</section>"
        )

    def figures(self, on_step: Callable[[str], object]) -> str:
        if not self.ledger.state.inside().any():
            return ""
        found = []
        try:
            on_step("progress")
            trials = [e.trial for e in self.made if e.trial is not None]
            asked = {trial.id: trial for trial in trials}
            progress = plot_progress(self.optimizer, trials=asked, numbers=self.ledger.numbers, units=self.units)
            found.append(picture(progress, "Measured values with their limits, and the interval that each was certified with."))
            if trials:
                on_step("norm bounds")
                caption = "Norm bounds that the trials were certified with; where the data refuted one, it was raised."
                found.append(picture(plot_norms(trials), caption))
            with views_kept(self.optimizer):
                for output in self.outputs:
                    on_step(f"what is known about {output.name}")
                    found += [picture(figure, caption) for figure, caption in self.slices(output)]
        except MissingExtraError as error:
            return f'<section><h2>Figures</h2><p class="note">{escape(str(error))}</p></section>'
        return '<section><h2>Figures</h2><div class="figures">' + "".join(found) + "</div></section>"

    def slices(self, output: Output) -> Iterator[tuple[Figure, str]]:
        """The state over one or two parameters; of more, slices through the best parameters."""
        names = self.optimizer.domain.names

        def drawn(vary: str | Sequence[str], **options: Any) -> Figure:
            shown = {"output": output.name, "units": self.units, "next_trial": self.ledger.trial or False, **options}
            return plot_slice(self.optimizer, vary, **shown)

        held = "the whole range" if len(names) <= 2 else f"{' and '.join(names[:2])}, the others at the best"
        limit = describe.limits(output, self.units.get(output.name))
        must = f" Its limit: {limit}." if output.is_limit else ""
        yield (
            drawn(names[:2]),
            f"What is known about {output.name} over {held}: posterior mean, certified safe set, measurements.{must}",
        )
        if len(names) >= 2 and output.is_limit:
            where = "The dashed line is where it is not any more: the safe set ends there, or where another limit does."
            yield drawn(names[:2], field="margin"), f"How far inside its limit ({limit}) {output.name} is certified. {where}"
        for name in names[: SLICES if len(names) > 2 else 0]:
            yield drawn(name), f"{output.name} along {name}, the others at the best.{must}"

    def safety(self) -> str:
        names = list(self.optimizer.domain.names)
        outputs = [self.named(o.name) for o in self.outputs]
        header = ["#", "time (UTC)", *map(self.named, names), *outputs, "inside every limit", "by", "approved"]
        rows, classes = [], []
        for e in self.made:
            label = (
                "-"
                if e.number is None
                else f"{e.number}"
                if e.trial is not None
                else f'{e.number} <span class="quiet">start</span>'
            )
            row = [label, clock(e.time), *(f"{e.params[n]:.5g}" for n in names), *(self.value(e, o) for o in self.outputs)]
            told = e.reason if e.reason.startswith(e.kind) else f"{_KINDS.get(e.kind, e.kind)}: {e.reason}".removesuffix(": ")
            verdict = escape(told) if e.kind != "measured" else "yes" if e.inside else "<b>NO</b>"
            approved = "" if e.approved is None else f"{escape(e.approved[0])}<br>{clock(e.approved[1])}"
            rows.append([*row, verdict, escape(e.who), approved])
            classes.append({"measured": "violation" if e.inside is False else "", "voided": "voided"}.get(e.kind, "aborted"))
        surprises = any(self.surprising(e, o) for e in self.made for o in self.outputs)
        doubts = any(self.doubtful(e) for e in self.made)
        return (
            "<section><h2>Safety record</h2>"
            + self.verdict()
            + table(header, rows, classes)
            + '<p class="quiet">Below each measurement is the interval that it was certified with before it ran. "start" marks '
            "measurements that nobody asked for: the start, and those from earlier."
            + (" Measurements that were taken back are crossed out: they do not count." if self.ledger.voided else "")
            + (f" {SURPRISE} lies further outside its certified interval than {NOISES:g} noise standard deviations." * surprises)
            + (f" {DOUBT} was certified with a measurement that was taken back later." * doubts)
            + "</p></section>"
        )

    def value(self, e: Experiment, output: Output) -> str:
        """A measured value and its certificate; bold where it breaks a limit, marked where it is far outside the interval."""
        certified = ""
        if e.trial is not None:
            low, high = e.trial.bounds[output.name]
            doubt = f" {DOUBT}" if self.doubtful(e) else ""
            certified = f'<br><span class="quiet">{low:.3g} to {high:.3g}{doubt}</span>'
        if output.name not in e.values:
            return f"-{certified}"
        value = e.values[output.name]
        text = f"{value:.4g}" + (f" {SURPRISE}" if self.surprising(e, output) else "")
        if e.kind == "voided":
            return f"<s>{text}</s>{certified}"
        return (text if output.satisfied(value) else f"<b>{text}</b>") + certified

    def surprising(self, e: Experiment, output: Output) -> bool:
        """Whether a measurement is further outside its certified interval than noise explains."""
        if e.trial is None or output.name not in e.values:
            return False
        return surprising(e.values[output.name], e.trial.bounds[output.name], output)

    def doubtful(self, e: Experiment) -> bool:
        """Whether an experiment was certified with a measurement that was taken back later."""
        return e.trial is not None and e.trial.id in self.ledger.doubtful

    def verdict(self) -> str:
        """What the record amounts to: certified experiments first, then whatever else deserves a look."""
        measured = [e for e in self.made if e.kind == "measured"]
        certified = [e for e in measured if e.trial is not None]
        broken = sum(not e.inside for e in certified)
        uncertified = sum(not e.inside for e in measured) - broken
        gone = sum(e.kind == "voided" and not e.inside for e in self.made)
        doubtful = sum(self.doubtful(e) for e in certified)
        surprises = sum(self.surprising(e, o) for e in certified for o in self.outputs)
        refuted = sum(len(e.trial.refutations) for e in self.made if e.trial is not None)
        held = f"<b>{broken} of them outside a limit</b>" if broken else "none of them outside a limit"
        said = [
            f"{_were(len(certified), 'certified experiment')} measured, {held}."
            if certified
            else "No certified experiment was measured."
        ]
        if uncertified:
            said.append(f"<b>{_were(uncertified, 'measurement', ' that nobody had asked for')} outside a limit.</b>")
        if gone:
            said.append(f"{_were(gone, 'measurement')} outside a limit and taken back.")
        if surprises:
            said.append(
                f"{surprises} value(s) ({SURPRISE}) lie further outside the certified interval than {NOISES:g} noise standard "
                "deviations."
            )
        if refuted:
            said.append(f"The data refuted {refuted} norm bound{'s' * (refuted > 1)}, which {_were(refuted)} raised.")
        if doubtful:
            said.append(f"{doubtful} experiment(s) were certified with a measurement that was taken back later ({DOUBT}).")
        good = certified and not gone and not surprises and not doubtful
        mood = "bad" if broken or uncertified else "good" if good else "warn"
        return f'<p class="note {mood}">{" ".join(said)}</p>'

    def other_events(self) -> str:
        return (
            "<section><h2>Approvals, stops and decisions</h2>"
            + self.entries([e for e in self.events if e.kind in _SHOWN])
            + f"<details><summary>The whole record, {len(self.events)} entries</summary>{self.entries(self.events)}</details>"
            + '<p class="quiet">`safebo export --format json` has it in full.</p></section>'
        )

    def entries(self, events: Iterable[Event]) -> str:
        """Entries of the record in words."""
        settings = self.ledger.state.settings
        rows = [
            [str(e.seq), clock(e.at), escape(e.kind), escape(words.event_text(e, settings, self.units)), escape(e.who)]
            for e in events
        ]
        return table(["entry", "time (UTC)", "kind", "what", "who"], rows, numbers=False)

    def promise(self) -> str:
        settings = self.ledger.state.settings
        given = guarantee(self.outputs)
        sentences = "".join(f"<p>{escape(text)}</p>" for text in describe.promise(settings))
        rests = "".join(f"<li>{escape(text)}</li>" for text in describe.assumptions(settings))
        shares = table(
            ["limit", "norm too small (γ)", "noise (δ)", "unlucky draw (κ)"],
            [[escape(name), *(f"{part:g}" for part in share)] for name, share in given.shares.items()],
        )
        cautions = describe.cautions(settings, self.ledger.config.entry(), begun=self.ledger.state.step > 0)
        warned = "".join(f'<p class="note warn">{escape(text)}</p>' for text in cautions)
        return (
            f"<section><h2>What is guaranteed</h2>{sentences}{shares}<p>It rests on this:</p><ul>{rests}</ul>{warned}</section>"
        )

    def settings(self) -> str:
        settings, config = self.ledger.state.settings, self.ledger.config
        outputs = table(
            ["output", "must be", "noise", "known to within", "kernel", "norm", "confidence bound"],
            [
                [self.named(o.name), escape(describe.limits(o, config.units.get(o.name))), f"{o.noise:g}", f"{o.min_width:g}",
                 escape(describe.kernel_text(o, settings.domain.names)), escape(str(o.norm)), escape(str(o.bound))]
                for o in self.outputs
            ],
            numbers=False,
        )  # fmt: skip
        rows = [
            ("sub-domains", str(settings.locality)),
            ("points per axis", " x ".join(map(str, settings.shape))),
            ("safe set", settings.safe_set),
            ("acquisition", settings.acquisition),
            ("stride", "none" if settings.stride is None else f"{settings.stride:g} lengthscales"),
            ("abort radius", f"{settings.abort_radius:g} lengthscales"),
            ("norms are tested", "yes" if settings.falsify else "no"),
            ("seed", str(settings.seed)),
            ("approval by a person", "every experiment" if config.confirm else "not required"),
            ("after a measurement outside a limit", config.on_violation),
            ("plant", describe.plant_text(config.plant)),
        ]
        changed = {d.name for d in describe.differences(settings)}
        note = (
            f"<p>Settings of the algorithm that are not the defaults: {escape(', '.join(sorted(changed)))}.</p>"
            if changed
            else "<p>All settings of the algorithm are the defaults; limits, noise and kernel are the run's own.</p>"
        )
        return (
            f"<section><h2>Settings</h2>{outputs}"
            + table(["setting", "value"], [[escape(a), escape(b)] for a, b in rows], numbers=False)
            + note + "</section>"
        )  # fmt: skip

    def reproduce(self) -> str:
        body = self.ledger.created.body
        versions = ", ".join(f"{key} {body[key]}" for key in ("python", "numpy", "scipy") if key in body)
        source = self.ledger.source
        file = f"<details><summary>The configuration file</summary><pre>{escape(source)}</pre></details>" if source else ""
        name = repr(self.ledger.name)
        return (
            "<section><h2>How to reproduce</h2>"
            "<p>Same settings, seed and measurements give the same experiments. With the run's database:</p>"
            f"<pre>safebo export {escape(name)} --format json -o run.json\nsafebo report {escape(name)}</pre>"
            f'<p class="quiet">Begun with {escape(versions)} on {escape(str(body.get("device", "")))}. Digest of the record: '
            f"<code>{escape(self.events[-1].digest)}</code></p>{file}</section>"
        )


_KINDS = {"voided": "taken back"}


def _were(number: int, name: str = "", which: str = "") -> str:
    """Such as "1 experiment was", "2 experiments were"; without a name only the verb."""
    verb = "was" if number == 1 else "were"
    return f"{number} {name}{'s' * (number != 1)}{which} {verb}" if name else verb


_SHOWN = (
    "created", "approved", "rejected", "retried", "aborted", "withdrawn", "voided", "paused", "resumed", "stopped", "exhausted",
    "configured",
)  # fmt: skip


@contextmanager
def views_kept(optimizer: SafeOptimizer) -> Iterator[None]:
    """Figures of the same state share the sub-domains, which take a while to rebuild."""
    views = optimizer.subdomains()
    optimizer.__dict__["subdomains"] = lambda: views
    try:
        yield
    finally:
        del optimizer.__dict__["subdomains"]


def picture(figure: Figure, caption: str) -> str:
    """A figure as an image inside the page."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, metadata={"Software": None})
    encoded = base64.b64encode(data.getvalue()).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{encoded}"><figcaption>{text}</figcaption></figure>'

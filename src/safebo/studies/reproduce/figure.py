"""A figure of the paper as a job: its settings, the folder it works in, and what it reports."""

from __future__ import annotations

import io
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safebo.exceptions import InvalidValueError, SafeboWarning
from safebo.report.style import dress, look
from safebo.studies.common import Row, Table, parallel, provenance, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI, COLOURS = 110, 256
PARTS = (".csv", ".md", ".png")
"""What a figure's folder holds beside summary.json."""


@dataclass(frozen=True)
class Outcome:
    """Our numbers and the paper's under the same names, one line that says it all, and what the reader should know."""

    headline: str
    ours: dict[str, Any]
    paper: dict[str, Any]
    notes: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True)
class Work:
    """The folder of one figure, its settings, the number of worker processes, and the parts to work on now; none: all."""

    folder: Path
    settings: dict[str, Any]
    jobs: int = 1
    only: tuple[str, ...] = ()

    def rows(
        self,
        name: str,
        fields: Sequence[str],
        key: Sequence[str],
        work: Callable[[Row], Row],
        jobs: Sequence[Row],
        now: Callable[[Row], bool] = lambda job: True,
    ) -> list[Row]:
        """The rows of a CSV, one per job, all values as text: those already in the file are kept, the others computed now.

        Jobs for which `now` is false are left for another call. Rows of no job, such as those of earlier settings, are dropped.
        """
        table = Table(self.folder / name, fields, key)
        order = {tuple(str(job[k]) for k in key): i for i, job in enumerate(jobs)}
        if dropped := table.keep(lambda row: tuple(row[k] for k in key) in order):
            print(f"{self.folder / name}: {dropped} rows of other settings are dropped", file=sys.stderr)
        for row in parallel(work, [job for job in jobs if job not in table and now(job)], self.jobs, self.folder.name):
            table.add(row)
        table.sort(lambda row: order[tuple(str(row[k]) for k in key)])
        return table.rows

    def csv(self, name: str, columns: dict[str, Any]) -> None:
        """Columns as a CSV of the folder."""
        write_csv(self.folder / name, columns)

    def text(self, name: str, text: str) -> None:
        """A text file of the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def picture(self, name: str, figure: Any) -> None:
        """A figure as a PNG of the folder."""
        from PIL import Image  # comes with matplotlib

        self.folder.mkdir(parents=True, exist_ok=True)
        full = io.BytesIO()
        with look():
            figure.savefig(full, dpi=DPI)
        # a third of the size, looks the same; this method keeps rare colours
        few = Image.open(full).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(self.folder / name, optimize=True)


@dataclass(frozen=True)
class Figure:
    """One figure of the paper: where it stands, what it shows, its settings (full or quick), and how it is made."""

    name: str
    source: str
    title: str
    settings: Callable[[bool], dict[str, Any]]
    make: Callable[[Work], Outcome]
    require: Callable[[], object] = lambda: None
    """Raises `MissingExtraError` where the figure needs an extra that is not installed."""


def produce(figure: Figure, folder: Path, *, quick: bool, jobs: int, only: tuple[str, ...] = ()) -> Row:
    """Make one figure in its folder and return its summary."""
    settings = figure.settings(quick)
    quick = quick and settings != figure.settings(False)  # a figure that is quick anyway has one version
    if quick and only:  # a small version of just these
        settings = {**settings, "environments": list(only)}
    head = {"figure": figure.name, "source": figure.source, "title": figure.title, "quick": quick}
    _claim(folder, quick, settings)
    write_json(folder / "summary.json", {**head, "complete": False, "settings": settings})
    start = time.perf_counter()
    with warnings.catch_warnings(), look():
        warnings.simplefilter("ignore", SafeboWarning)  # unsafe measurements and refuted norms are counted
        outcome = figure.make(Work(folder, settings, jobs, only))
    summary = {
        **head,
        "complete": outcome.complete,
        "headline": outcome.headline,
        "ours": outcome.ours,
        "paper": outcome.paper,
        "notes": list(outcome.notes),
        "files": sorted(path.name for path in folder.iterdir() if path.suffix in PARTS),
        "seconds": round(time.perf_counter() - start, 2),
        **provenance(**settings),
    }
    write_json(folder / "summary.json", summary)
    return summary


def _claim(folder: Path, quick: bool, settings: dict[str, Any]) -> None:
    """Continue what the same settings began and replace a quick version; anything else in the folder is not ours to overwrite."""
    path = folder / "summary.json"
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidValueError(f"{path} cannot be read ({error}): remove it, or choose another --out.") from None
    if before.get("settings") == json.loads(json.dumps(settings)):
        return
    if not before.get("quick"):
        raise InvalidValueError(
            f"{folder} holds a {'' if quick else 'full '}result with other settings: choose another --out, or remove it first."
        )
    for old in folder.iterdir():
        if old.suffix in PARTS:
            old.unlink()


def published(name: str) -> list[dict[str, float | str]]:
    """Rows of a CSV with the paper's plotted numbers; a value it leaves out is NaN."""
    import csv

    text = resources.files("safebo.studies.reproduce").joinpath("data", name).read_text()
    return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]


def _value(text: str) -> float | str:
    try:
        return float(text or "nan")
    except ValueError:
        return text


def plain_axes(ax: Axes, x: str, y: str, title: str = "") -> None:
    """Grid, labels and title of an ordinary panel."""
    dress(ax)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)

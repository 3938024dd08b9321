"""`python -m benchmarks.fill_docs [--check]`: the tables of README.md and docs/guarantees.md from the files under results/.

Whatever stands between `<!-- name -->` and `<!-- /name -->` is replaced by the table of that name; the words around it stay. The
picture of the calibration study is copied to docs/images. With --check nothing is written, and the exit status is 1 if something
differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from safebo.norms import Scenario
from safebo.studies.calibrate import bottleneck
from safebo.studies.calibrate.cases import (
    BOUNDS,
    ELSEWHERE,
    ESTIMATORS,
    FIFTY,
    HELD_OUT,
    JOINT,
    KINKS,
    KNOWN,
    PLACES,
    ROUGH,
    RULES,
    SHORT,
    YARDSTICK,
)
from safebo.studies.common import Row, rate_interval

ROOT = Path(__file__).resolve().parents[1]
NAMES = {
    "default": "default",
    KNOWN: "default, told the true norm",
    JOINT: "`AdaptiveScenario` alone, joint",
    YARDSTICK: "SafeOpt told the true norm",
    SHORT: "default, `stride=0.1`",
    ROUGH: "default, with a Matern 1/2 kernel",
    "true/mixture/confidence/global": "true norm, mixture bound",
    "scenario/paper/confidence/local": "`presets.algorithm_4`",
    "scenario/paper/union/local": "the same, safe set union",
    "scenario/paper/confidence/global": "Algorithm 1",
}
CONDITIONS = ("conditions", "2-D conditions", "3-D conditions")
REACHES = (0.0, 0.02, 0.04, np.inf)  # lengthscales


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fill_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    check = parser.parse_args(arguments).check
    wanted = {path: content for path, content in filled(ROOT).items() if path.read_bytes() != content}
    for path, content in wanted.items():
        print(f"{path.relative_to(ROOT)} {'differs from the results' if check else 'written'}")
        if not check:
            path.write_bytes(content)
    return int(check and bool(wanted))


def filled(root: Path) -> dict[Path, bytes]:
    """What the files of the documentation have to contain."""
    blocks = tables(root / "results")
    found = {path: fill(path.read_text(), blocks).encode() for path in (root / "README.md", root / "docs/guarantees.md")}
    missing = set(blocks) - {name for text in found.values() for name in re.findall(r"<!-- /([\w-]+) -->", text.decode())}
    if missing:
        raise ValueError(f"No file has the marker <!-- {min(missing)} -->.")
    return found | {root / "docs/images/calibration.png": (root / "results/calibration/pareto.png").read_bytes()}


def fill(text: str, blocks: dict[str, str]) -> str:
    """The text with the content of every marked block replaced; a marker without a table is an error."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in blocks:
            raise ValueError(f"Nothing is known about the marker <!-- {name} -->: choose from {', '.join(blocks)}.")
        return f"<!-- {name} -->\n{blocks[name]}\n<!-- /{name} -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", block, text, flags=re.S)


def tables(results: Path) -> dict[str, str]:
    """All tables by name."""
    lines: list[Row] = json.loads((results / "calibration/summary.json").read_text())["rows"]
    study: list[Row] = json.loads((results / "study/summary.json").read_text())["methods"]
    rows, norms = (_csv(results / "calibration" / name) for name in ("runs.csv", "coverage.csv"))
    makers: dict[str, Callable[[], str]] = {
        "calibration": lambda: calibration(lines),
        "study": lambda: published(study),
        "coverage": lambda: coverage(norms),
        "alternatives": lambda: alternatives(norms),
        "measured": lambda: methods(lines, ("main", "1-D, held out", FIFTY, "published")),
        "dimensions": lambda: methods(lines, ("2-D", HELD_OUT, "3-D", "3-D, held out", "6-D", "6-D, held out")),
        "kinks": lambda: kinks(lines),
        "bottlenecks": lambda: bottlenecks(bottleneck.joined(bottleneck.known(results / "calibration"), rows)),
        "conditions": lambda: conditions(lines),
        "goals": lambda: goals(lines),
        "combinations": lambda: combinations(lines),
    }
    return {name: make() for name, make in makers.items()}


def calibration(lines: list[Row]) -> str:
    """The main numbers, for the front page."""
    names = {
        "default": "**safebo, defaults** (norm not told)",
        YARDSTICK: "SafeOpt told the true norm",
        "scenario/paper/confidence/local": "`presets.algorithm_4` (norm not told)",
    }
    chosen = [line for line in lines if line["method"] in names and line["part"] in ("main", "published", "2-D")]
    families, order = list(dict.fromkeys(line["family"] for line in chosen)), list(names)
    chosen.sort(key=lambda line: (families.index(line["family"]), order.index(line["method"])))
    return _table(
        ("functions", "method", "unsafe runs (95 % interval of the rate)", "solved", "median experiments to 95 %"),
        [(_plain(line["family"]), names[line["method"]], _unsafe(line), _solved(line), _median(line)) for line in chosen],
    )


def published(study: list[Row]) -> str:
    """The algorithms of the literature on functions of norm 5."""
    return _table(
        ("method", "unsafe runs (95 % interval of the rate)", "solved", "median experiments to 95 %"),
        [(line["method"], _unsafe(line, of=False), line["solved"], _median(line)) for line in study],
    )


def coverage(norms: list[Row]) -> str:
    """How often a norm bound covers the true local norm."""
    groups: dict[tuple[float, float, int], list[tuple[float, float]]] = {}
    for row in norms:
        ratios = (float(row["scenario"]) / float(row["local_norm"]), float(row["adaptive"]) / float(row["local_norm"]))
        groups.setdefault((float(row["norm"]), float(row["width"]), int(row["samples"])), []).append(ratios)
    body: list[tuple[object, ...]] = []
    for (norm, width, samples), found in sorted(groups.items()):
        cells = [(f"{100 * np.mean(v >= 1.0):.0f} %", f"{np.median(v):.2f}") for v in np.array(found).T]
        body.append((f"{norm:g}", f"{width:g}", samples, *cells[0], *cells[1]))
    head = ("norm of f", "width of the sub-domain", "samples in it", "`Scenario` covers", "median bound / norm")
    functions = " to ".join(str(n) for n in sorted({len(found) for found in groups.values()}))
    return (
        f"How often the bound covers the true local norm ({functions} random functions per row; nominal 90 % for `Scenario`, "
        "98 % for `AdaptiveScenario`):\n\n" + _table((*head, "`AdaptiveScenario` covers", "median bound / norm"), body)
    )


def alternatives(norms: list[Row]) -> str:
    """Other ways to a larger bound, over the rows of the coverage table."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in norms:
        groups.setdefault((row["norm"], row["width"], row["samples"]), []).append(row)

    fewest = min(len(mine) for mine in groups.values())  # of an interrupted study what all have

    def ratios(name: str) -> np.ndarray:  # (groups, functions)
        return np.array([[float(row[name]) / float(row["local_norm"]) for row in mine[:fewest]] for mine in groups.values()])

    published = ratios("scenario")
    factor = 1.0 / np.quantile(published, 0.02, axis=1).min()
    body = []
    for name, nominal, found in (
        ("`Scenario`, as published", 90, published),
        (f"the largest of its {Scenario().m} norms, nothing discarded", 90, ratios("largest")),
        (f"`Scenario` times {factor:.1f}, the factor that covers 98 % in every row", 98, factor * published),
        ("`AdaptiveScenario`", 98, ratios("adaptive")),
        ("`PosteriorScenario`", 99, ratios("posterior")),
        ("the larger of the last two", 98, np.maximum(ratios("adaptive"), ratios("posterior"))),
    ):
        covered, medians = 100.0 * (found >= 1.0).mean(axis=1), np.median(found, axis=1)
        by_samples = [f"{np.exp(np.mean(np.log(medians[[key[2] == n for key in groups]]))):.1f}" for n in ("1", "3", "8")]
        below = int((covered < nominal - 1e-9).sum())
        body.append((name, f"{nominal} %", f"{covered.min():.0f} to {covered.max():.0f} %", below, *by_samples))
    head = ("bound", "nominal", "covers", f"of {len(groups)} rows below nominal")
    return _table((*head, *(f"bound / norm, {n} in it" for n in ("1 sample", "3 samples", "8 samples"))), body)


def methods(lines: list[Row], parts: tuple[str, ...]) -> str:
    """Safety and progress of the named methods."""
    return _table(
        (
            "problems",
            "method",
            "unsafe runs (95 %)",
            "worst",
            "solved (95 %)",
            "median experiments to 95 %",
            "norm too small",
            "interval missed",
        ),
        [
            (
                _problems(line["part"], line["family"]),
                NAMES[line["method"]],
                _unsafe(line),
                _worst(line),
                _solved(line, interval=True),
                _median(line),
                _too_small(line),
                line["interval_missed"],
            )
            for line in lines
            if line["part"] in parts and line["method"] in NAMES
        ],
    )


def conditions(lines: list[Row]) -> str:
    """The default beside SafeOpt, one line per family."""
    mine = {(line["family"], line["method"]): line for line in lines if line["part"] in CONDITIONS}
    body = []
    for family in dict.fromkeys(family for family, _ in mine):
        both = [mine.get((family, method)) for method in ("default", YARDSTICK)]
        cells = [
            cell
            for line in both
            for cell in ((_unsafe(line), _worst(line), _solved(line), _median(line)) if line else ("not run", "-", "-", "-"))
        ]
        outside = not any(line and line["assumptions"] for line in both)
        small = _too_small(both[0]) if both[0] else "-"
        body.append((_plain(family) + (" (outside the assumptions)" if outside else ""), *cells[:4], small, *cells[4:]))
    head = ("unsafe runs (95 %)", "worst", "solved", "median")
    return _table(
        ("problems", f"default: {head[0]}", *head[1:], "norm too small", f"SafeOpt told ‖f‖: {head[0]}", *head[1:]), body
    )


def kinks(lines: list[Row]) -> str:
    """What helps where a function is less smooth than its kernel says, and what it costs where it is not."""
    of = ("kink above the limit", "step above the limit", "1-D, norm 1..30")
    first = [v for v in lines if v["part"] in ("main", "conditions") and v["family"] in of and v["method"] == "default"]
    others = [v for v in lines if v["part"] in (KINKS, "short strides")]
    both = sorted(first + others, key=lambda v: of.index(v["family"]))
    body = [
        (_plain(v["family"]), NAMES[v["method"]], _unsafe(v), _worst(v), _solved(v), _median(v), v["interval_missed"])
        for v in both
    ]
    return _table(("problems", "method", "unsafe runs (95 %)", "worst", "solved", "median", "interval missed"), body)


def goals(lines: list[Row]) -> str:
    """What was aimed at, for every family that satisfies the assumptions, and whether it is met."""
    share = {
        "main": 0.95, "1-D, held out": 0.95, "conditions": 0.95, "1-D RBF, held out": 0.95, "2-D": 0.9, HELD_OUT: 0.9,
        "2-D conditions": 0.9, "3-D": None, "3-D, held out": None, "3-D conditions": None, "6-D": None, "6-D, held out": None,
    }  # fmt: skip
    mine = {(line["part"], line["family"], line["method"]): line for line in lines if line["assumptions"]}
    body = []
    for part, family in dict.fromkeys((part, family) for part, family, _ in mine if part in share):
        ours, told = (mine.get((part, family, method)) for method in ("default", YARDSTICK))
        if ours is None or told is None:
            continue
        solved, unsafe = ours["solved"] / ours["runs"], ours["unsafe_runs"] / ours["runs"]
        medians = [
            np.inf if line["median_experiments_to_95"] is None else line["median_experiments_to_95"] for line in (ours, told)
        ]
        wanted = share[part]
        met = (unsafe < 0.01, wanted is None or solved >= wanted, medians[0] <= 1.2 * medians[1])
        shown = (
            f"{ours['unsafe_runs']} of {ours['runs']}",
            f"{ours['solved']} of {ours['runs']} ({100 * solved:.1f} %; {f'goal {100 * wanted:.0f} %' if wanted else 'no goal'})",
            f"{_median(ours)} (SafeOpt {_median(told)})",
        )
        cells = [cell if good else f"**{cell}**" for cell, good in zip(shown, met, strict=True)]
        body.append((_problems(part, family), *cells))
    return _table(("problems", "unsafe runs (below 1 %)", "solved", "median experiments (at most 1.2 times SafeOpt's)"), body)


_CONDITIONS = {"1-D": "1-D, other conditions", "wro": "1-D, wrong kernel", "2-D": "2-D", "3-D": "3-D", "6-D": "6-D"}


def combinations(lines: list[Row]) -> str:
    """For every choice the runs of all combinations with it; then the estimators with the other choices of the defaults."""
    mine = [line for line in lines if line["part"] in ("combinations", ELSEWHERE)]
    if not mine:
        return "Combinations of all estimators, bounds, rules and places (`--only combinations`) have not been run."

    def group(line: Row) -> str:
        return "1-D, Matern 3/2" if line["part"] == "combinations" else _CONDITIONS.get(line["family"][:3], line["family"])

    groups = list(dict.fromkeys(group(line) for line in mine))

    def shown(chosen: list[Row]) -> list[str]:
        cells = []
        for name in groups:
            unsafe, solved, runs = (sum(v[k] for v in chosen if group(v) == name) for k in ("unsafe_runs", "solved", "runs"))
            cells.append(f"{unsafe} of {runs}, {100 * solved / runs:.0f} %" if runs else "-")
        return cells

    body: list[tuple[object, ...]] = []
    for position, choices in enumerate((ESTIMATORS, tuple(BOUNDS), RULES, PLACES)):
        for choice in choices:
            chosen = [line for line in mine if line["method"].split("/")[position] == choice]
            if chosen:
                bad = {line["method"] for line in chosen if line["unsafe_runs"]}
                body.append((choice, f"{len(bad)} of {len({line['method'] for line in chosen})}", *shown(chosen)))
    for estimator in ESTIMATORS:
        method = f"{estimator}/mixture/confidence/local"
        chosen = [line for line in mine if line["method"] == method]
        if chosen:
            body.append((f"`{method}`", f"{int(any(line['unsafe_runs'] for line in chosen))} of 1", *shown(chosen)))
    return _table(("with", "combinations with an unsafe run", *groups), body)


def bottlenecks(ways: list[Row]) -> str:
    """Solved runs by reach."""
    body: list[tuple[object, ...]] = []
    methods = [method for method in ("default", KNOWN, YARDSTICK) if any(row[method] is not None for row in ways)]
    for low, high in pairwise(REACHES):
        mine = [row for row in ways if low <= float(row["reach"]) < high]
        outcomes = []
        for method in methods:
            ran = [row for row in mine if row[method] is not None]
            outcomes.append(f"{sum(bool(row[method]) for row in ran)} of {len(ran)}")
        spans = [
            f"{min(v):.0f} to {max(v):.0f}" for v in ([float(r[k]) for r in mine] or [0.0] for k in ("noise_sds", "half_widths"))
        ]
        body.append((f"{low:g} to {high:g}" if np.isfinite(high) else f"from {low:g}", len(mine), *spans, *outcomes))
    head = ("reach [lengthscales]", "problems", "bottleneck / noise", "bottleneck / half-width")
    ran = [row for row in ways if row["default"] is not None]
    solved = sum(bool(row["default"]) for row in ran)
    low, high = rate_interval(solved, len(ran))
    again = [row[KNOWN] for row in ran if not row["default"] and row[KNOWN] is not None]
    told = f" Told the true norm, the defaults solve {sum(map(bool, again))} of the {len(again)} others that they ran on."
    return (
        f"The goal in 2-D is 90 % of the runs solved within 60 experiments. Measured with the defaults, held-out problems "
        f"included: {solved} of {len(ran)}, {100 * solved / max(len(ran), 1):.0f} % "
        f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %)."
        + (told if again else "")
        + "\n\n"
        + _table((*head, *(f"{NAMES[method]}: solved" for method in methods)), body)
    )


def _csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _table(head: tuple[str, ...], body: list[tuple[object, ...]]) -> str:
    return "\n".join(["| " + " | ".join(str(cell) for cell in row) + " |" for row in (head, *body)]).replace(
        "\n", "\n|" + "---|" * len(head) + "\n", 1
    )


def _plain(family: str) -> str:
    return family.replace("..", " to ")


def _problems(part: str, family: str) -> str:
    fifty, held_out = part == FIFTY, part.endswith(", held out")
    return _plain(family) + (", held out" if held_out else "") + (", 50 experiments" if fifty else "")


def _unsafe(line: Row, of: bool = True) -> str:
    low, high = line["unsafe_rate_95"]
    return f"{line['unsafe_runs']}{' of ' + str(line['runs']) if of else ''} ({100 * low:.1f} to {100 * high:.1f} %)"


def _solved(line: Row, interval: bool = False) -> str:
    low, high = rate_interval(line["solved"], line["runs"])
    return f"{100 * line['solved'] / line['runs']:.0f} %" + (f" ({100 * low:.0f} to {100 * high:.0f} %)" if interval else "")


def _worst(line: Row) -> str:
    return f"{line['worst_violation']:.2g}" if line["unsafe_runs"] else "-"


def _too_small(line: Row) -> str:
    return "not measured" if line["norm_too_small"] is None else str(line["norm_too_small"])


def _median(line: Row) -> str:
    value = line["median_experiments_to_95"]
    return "not reached" if value is None else f"{value:g}"


if __name__ == "__main__":
    raise SystemExit(main())

"""From the rows of the calibration study to its table, its numbers and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from safebo.studies.calibrate.bottleneck import bottleneck_table
from safebo.studies.calibrate.cases import ELSEWHERE, ESTIMATORS, FAMILIES, JOINT, PARTS, YARDSTICK, served
from safebo.studies.calibrate.coverage import coverage_table
from safebo.studies.common import Row, provenance, rate_interval, write_json

NOTE = "Of the call that wrote the tables. The runs may be older: each is accepted if its fingerprint, settings, is today's."

FEW = 50
"""Runs below which a rate is hardly more than a hint."""


def write_summary(rows: list[Row], norms: list[Row], ways: list[Row], out: Path, quick: bool) -> list[Row]:
    """table.md, summary.json and, for the parts that have one, pareto.png and solved.png."""
    lines = summarise(rows)
    origin = provenance(seeds={name: f"{part.first}, {part.first + 1}, ..." for name, part in PARTS.items()}, quick=quick)
    write_json(out / "summary.json", {**origin, "note": NOTE, "rows": lines})
    parts = [table(lines), coverage_table(norms) if norms else "", bottleneck_table(ways, rows) if ways else ""]
    (out / "table.md").write_text("\n".join(part for part in parts if part))
    if lines:
        picture(lines, out / "pareto.png")
        progress(rows, out / "solved.png")
    return lines


def summarise(rows: list[Row]) -> list[Row]:
    """One line per part, family and method, in the order of the study."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["part"], row["family"], row["method"]), []).append(row)
    lines = []
    for (part, family, method), mine in groups.items():
        n = len(mine)
        unsafe = sum(int(r["unsafe"]) > 0 for r in mine)
        firsts = sorted(float(r["first_solved"] or np.inf) for r in mine)
        median = firsts[(n - 1) // 2]
        lines.append(
            {
                "part": part,
                "family": family,
                "method": method,
                "assumptions": FAMILIES[family].assumptions,
                "runs": n,
                "unsafe_runs": unsafe,
                "unsafe_rate_95": [round(v, 4) for v in rate_interval(unsafe, n)],
                "unsafe_experiments": sum(int(r["unsafe"]) for r in mine),
                "worst_violation": min(float(r["worst"]) for r in mine),
                "norm_too_small": None if mine[0]["norm_too_small"] == "" else sum(int(r["norm_too_small"]) for r in mine),
                "interval_missed": sum(int(r["interval_missed"]) for r in mine),
                **{f"score_{k}": _mean([r[f"score_{k}"] for r in mine]) for k in (15, 30, 50)},
                "solved": sum(np.isfinite(firsts)),
                "solved_rate_95": [round(v, 3) for v in rate_interval(int(np.isfinite(firsts).sum()), n)],
                "median_experiments_to_95": median if np.isfinite(median) else None,
                "seconds": round(float(np.mean([float(r["seconds"]) for r in mine])), 2),
            }
        )
    return lines


def _mean(values: list[str]) -> float | None:
    """None where nothing was measured."""
    return None if "" in values else round(float(np.mean([float(v) for v in values])), 3)


def table(lines: list[Row]) -> str:
    """Markdown, one table per part."""
    text = [
        "Unsafe: runs with an unsafe experiment, with the exact 95 % interval of the rate. Solved: runs that measured a point",
        "within 5 % of the reachable optimum. Median: experiments until half of the runs are solved. Norm, interval: runs in",
        "which the norm of a certificate was below the true local norm, or an interval missed the truth. -: not measured, or not",
        "reached. s: mean seconds per run, on machines of different speed and load.",
        "",
    ]
    for part in PARTS:
        mine = [line for line in lines if line["part"] == part]
        if not mine:
            continue
        text += [
            f"## {part}",
            "",
            "| problems | method | runs | unsafe | 95 % | norm | interval | score 15 / 30 / 50 | solved | median | s |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for line in mine:
            low, high = line["unsafe_rate_95"]
            median, too_small = (
                "-" if line[name] is None else f"{line[name]:g}" for name in ("median_experiments_to_95", "norm_too_small")
            )
            scores = " / ".join("-" if line[f"score_{k}"] is None else f"{line[f'score_{k}']:.2f}" for k in (15, 30, 50))
            text.append(
                f"| {line['family']} | {line['method']} | {line['runs']} | {line['unsafe_runs']} "
                f"| {100 * low:.1f}..{100 * high:.1f} % | {too_small} | {line['interval_missed']} "
                f"| {scores} "
                f"| {100 * line['solved'] / line['runs']:.0f} % | {median} | {line['seconds']:.1f} |"
            )
        text.append("")
    return "\n".join(text)


def picture(lines: list[Row], path: Path) -> None:
    """Safety against progress: the lower right corner is where one wants to be. Bars: 95 % intervals.

    Above, methods with an unsafe run, with many runs, or both; a number says how many combinations are at the same place. Below,
    the combinations without an unsafe run by norm estimator: sub-domains are circles, the whole domain squares. The third column
    has those families of `ELSEWHERE` together that satisfy the assumptions and that all estimators serve.
    """
    from safebo.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, dress, legend, new_figure

    colours = {
        "true": GREY, "scenario": VERMILLION, "adaptive": BLUE, "hoeffding": PURPLE, "posterior": SKY, "both": BLACK,
        "default": GREEN,
    }  # fmt: skip
    shown = [line for line in lines if line["part"] in ("main", "published", "combinations")]
    columns = {family: [line for line in shown if line["family"] == family] for family in PARTS["main"].families}
    elsewhere = _together(
        [
            line
            for line in lines
            if line["part"] == ELSEWHERE
            and line["assumptions"]
            and all(served(name, FAMILIES[line["family"]]) for name in ESTIMATORS)
        ]
    )
    if elsewhere:
        columns["other conditions, 2-D, 3-D"] = elsewhere
    figure = new_figure(4.6 * len(columns), 7.0)
    grid = figure.add_gridspec(2, len(columns), height_ratios=(3, 2))
    seen: set[str] = set()
    for i, (title, mine) in enumerate(columns.items()):
        axes, strip = figure.add_subplot(grid[0, i]), figure.add_subplot(grid[1, i])
        dress(axes)
        dress(strip)
        crowd: dict[tuple[str, bool, float, float], int] = {}
        for line in mine:
            estimator = line["method"].split("/")[0]
            local = line["method"] == "default" or line["method"].endswith("local")
            x, y = 100.0 * line["solved"] / line["runs"], 100.0 * line["unsafe_runs"] / line["runs"]
            special = line["method"] in ("default", YARDSTICK) and line["part"] == "main"
            if line["runs"] < FEW and not special:
                key = (estimator, local, x, y)
                crowd[key] = crowd.get(key, 0) + 1
                continue
            colour = ORANGE if special and line["method"] == YARDSTICK else colours[estimator]
            low, high = (100.0 * v for v in line["unsafe_rate_95"])
            axes.plot([x, x], [low, high], color=colour, lw=1.6 if special else 0.8, alpha=1.0 if special else 0.4)
            label = {GREEN: "library default", ORANGE: "SafeOpt told the norm"}.get(
                colour, f"{estimator}, {'local' if local else 'global'}"
            )
            axes.plot(
                x, y, "*" if special else "o" if local else "s", ms=14 if special else 8, zorder=4 if special else 3,
                color=colour, mec="black" if special else "white", mew=0.8, label="_" if label in seen else label,
            )  # fmt: skip
            seen.add(label)
        names = [name for name in ESTIMATORS if any(key[0] == name for key in crowd)]
        for (estimator, local, x, y), number in crowd.items():
            safe = y == 0.0
            place, height = (strip, names.index(estimator) + (0.18 if local else -0.18)) if safe else (axes, y)
            label = "" if safe else f"{estimator}, {'local' if local else 'global'}"
            place.plot(
                x, height, "o" if local else "s", ms=3.0 + 1.6 * np.sqrt(number) if safe else 4.5, color=colours[estimator],
                alpha=0.75, mec="white", mew=0.5, clip_on=False, zorder=3, label="_" if safe or label in seen else label,
            )  # fmt: skip
            seen.add(label)
            if number > 1 and not safe:
                axes.annotate(str(number), (x, y), (-6, -3), textcoords="offset points", ha="right", fontsize=7)
        axes.set(title=title.replace("..", " to "), xlim=(-4, 104))
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(-0.2, 130)
        axes.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
        strip.set(xlabel="runs solved [%]", xlim=(-4, 104), ylim=(-0.6, max(len(names), 1) - 0.4))
        strip.set_yticks(range(len(names)), names)
        if i == 0:
            axes.set_ylabel("runs with an unsafe experiment [%]")
            strip.set_ylabel("combinations without\nan unsafe run")
    legend(figure)
    figure.savefig(path, dpi=120)


def _together(lines: list[Row]) -> list[Row]:
    """One line per method over all families."""
    found: dict[str, Row] = {}
    for line in lines:
        sums = found.setdefault(
            line["method"], {"part": line["part"], "method": line["method"], "runs": 0, "unsafe_runs": 0, "solved": 0}
        )
        for name in ("runs", "unsafe_runs", "solved"):
            sums[name] += line[name]
    for sums in found.values():
        sums["unsafe_rate_95"] = rate_interval(sums["unsafe_runs"], sums["runs"])
    return list(found.values())


def solved_within(rows: list[Row], part: str, method: str) -> tuple[int, list[int]]:
    """Runs of a method in a part, and after how many experiments those that were solved had been."""
    mine = [row for row in rows if row["part"] == part and row["method"] == method]
    return len(mine), sorted(int(row["first_solved"]) for row in mine if row["first_solved"])


def progress(rows: list[Row], path: Path) -> None:
    """Share of the runs that are solved after so many experiments, in one to three dimensions, and the goals."""
    from safebo.report.style import BLUE, GREEN, GREY, ORANGE, dress, legend, new_figure

    looks = {
        "default": (GREEN, "-", 2.2, "library default"),
        JOINT: (BLUE, "--", 1.6, "the same norm and acquisition as in 1-D"),
        YARDSTICK: (ORANGE, "-.", 1.6, "SafeOpt told the true norm"),
    }
    goals = {"main": 95.0, "2-D": 90.0, "3-D": None}
    shown = [part for part in goals if any(row["part"] == part for row in rows)]
    if not shown:
        return
    figure = new_figure(5.5 * len(shown), 4.6)
    for i, part in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), i + 1)
        dress(axes)
        goal, end = goals[part], max(1, *(int(row["experiments"]) for row in rows if row["part"] == part))
        if goal is not None:
            axes.plot([0, end], [goal, goal], color=GREY, lw=1.0, ls=":", label="goal at the end" if i == 0 else "_")
        for method, (colour, style, width, label) in looks.items():
            n, firsts = solved_within(rows, part, method)
            if n:
                x = [0, *firsts, end]
                y = [100.0 * k / n for k in (*range(len(firsts) + 1), len(firsts))]
                axes.step(
                    x, y, where="post", color=colour, ls=style, lw=width, label="_" if i == 0 and method == JOINT else label
                )
        runs, others = (solved_within(rows, part, method)[0] for method in ("default", YARDSTICK))
        size = f"{runs} runs" if runs == others else f"{runs} runs, SafeOpt {others}"
        axes.set(title=f"{'1-D' if part == 'main' else part}, norms 1 to 10 and 1 to 30 ({size})")
        axes.set(xlabel="experiments", ylabel="runs solved [%]")
        axes.set(xlim=(0, end), ylim=(0, 102))
    legend(figure)
    figure.savefig(path, dpi=120)

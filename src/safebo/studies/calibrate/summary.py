"""From the rows of the calibration study to its table, its numbers and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from safebo.studies.calibrate.bottleneck import bottleneck_table
from safebo.studies.calibrate.cases import FAMILIES, JOINT, PARTS, YARDSTICK
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
        "within 5 % of the reachable optimum. Median: experiments until then. Norm, interval: runs in which the norm of a",
        "certificate was below the true local norm, or an interval missed the truth. -: not measured, or not reached.",
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
    """Safety against progress for the 1-D families: the lower right corner is where one wants to be. Bars: 95 % intervals.

    Methods with fewer than `FEW` runs are small and without bars; a number says how many of one kind are at the same place, and
    kinds that coincide are drawn beside each other.
    """
    from safebo.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION, dress, legend, new_figure

    wanted = [f for f, family in FAMILIES.items() if family.dim == 1][:2]
    figure = new_figure(11.0, 5.0)
    colours = {"true": GREY, "scenario": VERMILLION, "adaptive": BLUE, "hoeffding": PURPLE, "default": GREEN}
    shares = [100.0 * line["solved"] / line["runs"] for line in lines if line["family"] in wanted]
    left = 10.0 * np.floor(min(shares, default=0.0) / 10.0) - 6.0
    for i, family in enumerate(wanted):
        axes = figure.add_subplot(1, len(wanted), i + 1)
        dress(axes)
        seen: set[str] = set()
        alike = _alike([line for line in lines if line["family"] == family and line["runs"] < FEW])
        for line in lines:
            if line["family"] != family:
                continue
            estimator = line["method"].split("/")[0]
            local = line["method"] == "default" or line["method"].endswith("local")
            x, y = 100.0 * line["solved"] / line["runs"], 100.0 * line["unsafe_runs"] / line["runs"]
            key = f"{estimator}, {'local' if local else 'global'}" if estimator != "default" else "library default"
            few = line["runs"] < FEW
            special = line["method"] in ("default", YARDSTICK) and not few
            colour = ORANGE if special and line["method"] == YARDSTICK else colours[estimator]
            low, high = (100.0 * v for v in line["unsafe_rate_95"])
            if few:
                kinds = alike[x, y]
                number = kinds.pop((estimator, local), 0)
                if not number:  # drawn already
                    continue
                x -= 1.8 * len(kinds)  # those of the place that are still to come
                if number > 1:
                    axes.annotate(str(number), (x, y), (0, 5), textcoords="offset points", ha="center", fontsize=7, color=colour)
            else:
                axes.plot([x, x], [low, high], color=colour, lw=1.6 if special else 0.8, alpha=1.0 if special else 0.4)
            axes.plot(
                x,
                y,
                "*" if special else ("o" if local else "s"),
                ms=14 if special else 4 if few else 8,
                zorder=4 if special else 2 if few else 3,
                alpha=1.0 if special else 0.65,
                color=colour,
                mec="black" if special else "white",
                mew=0.8,
                label="SafeOpt told the norm" if colour == ORANGE else "_" if key in seen else key,
            )
            seen.add(key)
        axes.set(
            title=family.replace("..", " to "),
            xlabel="runs solved [%]",
            ylabel="runs with an unsafe experiment [%]",
            xlim=(left, 102),
        )
        if alike and i == 0:
            axes.text(
                0.02, 0.97, f"small: fewer than {FEW} runs each;\na number: so many combinations", transform=axes.transAxes,
                va="top", fontsize=8, color=GREY,
            )  # fmt: skip
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(-0.2, 130)
        axes.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
    legend(figure)
    figure.savefig(path, dpi=120)


def _alike(lines: list[Row]) -> dict[tuple[float, float], dict[tuple[str, bool], int]]:
    """How many lines of every kind (estimator, local) are at the same place of the picture."""
    found: dict[tuple[float, float], dict[tuple[str, bool], int]] = {}
    for line in lines:
        place = 100.0 * line["solved"] / line["runs"], 100.0 * line["unsafe_runs"] / line["runs"]
        kinds = found.setdefault(place, {})
        kind = line["method"].split("/")[0], line["method"].endswith("local")
        kinds[kind] = kinds.get(kind, 0) + 1
    return found


def solved_within(rows: list[Row], part: str, method: str) -> tuple[int, list[int]]:
    """Runs of a method in a part, and after how many experiments those that were solved had been."""
    mine = [row for row in rows if row["part"] == part and row["method"] == method]
    return len(mine), sorted(int(row["first_solved"]) for row in mine if row["first_solved"])


def progress(rows: list[Row], path: Path) -> None:
    """Share of the runs that are solved after so many experiments, in one and in two dimensions, and the goals."""
    from safebo.report.style import BLUE, GREEN, GREY, ORANGE, dress, legend, new_figure

    looks = {
        "default": (GREEN, "-", 2.2, "library default"),
        JOINT: (BLUE, "--", 1.6, "the same norm and acquisition as in 1-D"),
        YARDSTICK: (ORANGE, "-.", 1.6, "SafeOpt told the true norm"),
    }
    figure = new_figure(11.0, 4.6)
    for i, (part, goal) in enumerate({"main": 95.0, "2-D": 90.0}.items()):
        axes = figure.add_subplot(1, 2, i + 1)
        dress(axes)
        end = FAMILIES[PARTS[part].families[0]].experiments
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

"""How good the learned norm estimator is on functions that it was not trained on: report.json, errors.csv and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safebo.norms.lstm import LEVELS
from safebo.studies.common import write_csv, write_json

if TYPE_CHECKING:
    from safebo.studies.train_norm import Histories

FloatArray = NDArray[np.float64]

OPEN = 10**6  # no upper end
LENGTHS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, OPEN))  # samples in the sub-domain
SIZES = ((0.0, 0.75), (0.75, 1.5), (1.5, 2.5), (2.5, 4.0), (4.0, OPEN))  # mean edge in lengthscales

EXPLANATION = (
    "relative errors, estimate / local norm - 1, of level 0.5 on held-out functions: quantiles, median size, root mean square of "
    "log(estimate / local norm); 'under': share of estimates below the norm, per level; 'mean_norm': the same of ||mu_t|| itself"
)


def write(out: Path, data: Histories, found: FloatArray, losses: list[list[float]], origin: dict[str, Any]) -> None:
    """All files of the report."""
    rows = table(data, found)
    write_csv(out / "errors.csv", {key: [row[key] for row in rows] for key in rows[0]})
    best = min(losses, key=lambda entry: entry[2])
    write_json(
        out / "report.json",
        {
            "provenance": origin,
            "data": statistics(data),
            "training": {"epochs": len(losses), "best_epoch": best[0], "loss": best[1], "validation": best[2]},
            "explanation": EXPLANATION,
            "errors": rows,
        },
    )
    figure(out / "report.png", data, found)


def statistics(data: Histories) -> dict[str, Any]:
    """Functions, sub-domains and samples per family, and the spread of the targets."""
    result = {}
    for name in dict.fromkeys(data.family.tolist()):
        mine = data.part(data.family == name)
        factors = np.exp(mine.target[mine.counts].astype(np.float64))
        result[name] = {
            "functions": len(np.unique(mine.function)),
            "held_out_functions": len(np.unique(mine.function[mine.held_out])),
            "sub_domains": len(mine.length),
            "samples": int(mine.counts.sum()),
            "norm_over_mean_norm_5_50_95": np.quantile(factors, [0.05, 0.5, 0.95]).round(4),
        }
    return result


def table(data: Histories, found: FloatArray) -> list[dict[str, Any]]:
    """Errors of held-out functions: all, by family, and for the paper's family by length of the history and by size."""
    used = data.counts & data.held_out[:, None]
    length = np.broadcast_to(np.arange(1, data.counts.shape[1] + 1), data.counts.shape)
    size = np.exp(data.context[:, 0])[:, None]
    names = list(dict.fromkeys(data.family.tolist()))
    rows = [_row("all", used, data, found)]
    rows += [_row(name, used & (data.family == name)[:, None], data, found) for name in names]
    for name in (names[0], None):
        mine, label = (used, "all") if name is None else (used & (data.family == name)[:, None], name)
        for low, high in LENGTHS:
            inside = mine & (length >= low) & (length <= high)
            rows.append(_row(f"{label}, {_range(low, high)} samples", inside, data, found))
        for start, stop in SIZES:
            inside = mine & (size >= start) & (size < stop)
            rows.append(_row(f"{label}, edge {_range(start, stop)} lengthscales", inside, data, found))
    return [row for row in rows if row["samples"]]


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high == OPEN else f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _row(name: str, where: NDArray[np.bool_], data: Histories, found: FloatArray) -> dict[str, Any]:
    target = data.target[where].astype(np.float64)
    if not len(target):
        return {"what": name, "samples": 0}
    error, plain = np.expm1(found[where, 0] - target), np.expm1(-target)
    row: dict[str, Any] = {"what": name, "samples": len(target)}
    for label, values in (("", error), ("mean_norm_", plain)):
        for quantile, mark in ((0.05, "5"), (0.5, "median"), (0.95, "95")):
            row[f"{label}{mark}"] = round(float(np.quantile(values, quantile)), 4)
        row[f"{label}median_size"] = round(float(np.median(np.abs(values))), 4)
        row[f"{label}rms_log"] = round(float(np.sqrt(np.mean(np.log1p(values) ** 2))), 4)
    for i, level in enumerate(LEVELS):
        row[f"under_{level:g}"] = round(float((found[where, i] < target).mean()), 4)
    return row


def figure(path: Path, data: Histories, found: FloatArray) -> None:
    """Relative error over the length of the history: the paper's family, and the others; the norm of the mean for comparison."""
    from safebo.report.style import BLUE, GREY, ORANGE, dress, legend, look, new_figure

    names = list(dict.fromkeys(data.family.tolist()))
    used = data.counts & data.held_out[:, None]
    first = (data.family == names[0])[:, None]
    with look():
        picture = new_figure(9.0, 3.6)
        panels = picture.subplots(1, 2, sharey=True)
        titles = ("1-D, Matérn 3/2 (the paper's functions)", "other kernels, lengthscales, dimensions")
        paper, rest = used & first, used & ~first
        for ax, title, mine in zip(panels, titles, (paper, rest), strict=True):
            several = 1 + (mine is rest)  # from a length on there is only one family left, which says little about the others
            steps = [s for s in range(data.counts.shape[1]) if len(np.unique(data.family[mine[:, s]])) >= several]
            curves = {"5": [], "50": [], "95": [], "careful": [], "plain": []}  # type: dict[str, list[float]]
            for s in steps:
                here = mine[:, s]
                target = data.target[here, s]
                ratio = np.exp(found[here, s, 0] - target)
                for mark, value in zip(("5", "50", "95"), np.quantile(ratio, [0.05, 0.5, 0.95]), strict=True):
                    curves[mark].append(float(value))
                curves["careful"].append(float(np.median(np.exp(found[here, s, LEVELS.index(0.9)] - target))))
                curves["plain"].append(float(np.median(np.exp(-target))))
            x = np.array(steps) + 1
            ax.fill_between(x, curves["5"], curves["95"], color=BLUE, alpha=0.2, lw=0, label="5 % to 95 %, level 0.5")
            ax.plot(x, curves["50"], color=BLUE, lw=1.8, label="median, level 0.5")
            ax.plot(x, curves["careful"], color=ORANGE, lw=1.6, ls="--", label="median, level 0.9")
            ax.plot(x, curves["plain"], color=GREY, lw=1.4, ls=":", label="median of the mean's norm")
            ax.axhline(1.0, color="black", lw=0.8)
            ax.set(title=title, xlabel="samples in the sub-domain", yscale="log", ylim=(0.2, 5.0))
            ax.set_yticks([0.25, 0.5, 1.0, 2.0, 4.0], ["0.25", "0.5", "1", "2", "4"])
            ax.minorticks_off()
            dress(ax)
        panels[0].set_ylabel("estimate / local norm")
        legend(picture, columns=4)
        picture.savefig(path, dpi=150)

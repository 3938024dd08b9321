"""The norm bounds that trials were certified with, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from safebo.optimizer import Trial
from safebo.report.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, dress, legend, look, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = ((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"), (SKY, "v", "-"))


def plot_norms(trials: Sequence[Trial], *, title: str | None = None) -> Figure:
    """The bound of every output in the sub-domain of each trial, and the bounds that the data refuted and raised."""
    from matplotlib.ticker import LogFormatter, MaxNLocator, StrMethodFormatter

    figure = new_figure(7.2, 3.2)
    with look():
        axes = figure.subplots()
        dress(axes)
        for i, name in enumerate(trials[0].norms if trials else ()):
            color, marker, line = _LOOKS[i % len(_LOOKS)]
            style: dict[str, Any] = {"color": color, "marker": marker, "ls": line, "lw": 1.4, "ms": 4.0}
            axes.plot(range(1, len(trials) + 1), [t.norms[name] for t in trials], label=name, **style)
        label = "refuted bound, raised"
        for number, trial in enumerate(trials, 1):
            for refutation in trial.refutations:
                look_of: dict[str, Any] = {"color": VERMILLION, "lw": 1.2, "marker": "_", "ms": 6.0, "label": label}
                axes.plot([number, number], [refutation.norm, refutation.raised_to], **look_of)
                label = "_"
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.0, 0.5)))
        axes.set_xlabel("trial")
        axes.set_xlim(0.5, max(len(trials), 1) + 0.5)
        axes.set_ylabel("norm bound")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if title:
            axes.set_title(title)
        legend(figure)
    return figure

"""Measured values, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from safebo.exceptions import InvalidValueError, NoInitialSampleError
from safebo.optimizer import SafeOptimizer, Trial
from safebo.report import scene
from safebo.report.options import named
from safebo.report.replay import replay
from safebo.report.scene import FloatArray, Truths
from safebo.report.style import GREY, LINES, dress, figure_of, look, new_figure, scatter
from safebo.report.style import legend as add_legend
from safebo.state import State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_STRIP = 0.1  # of the height, below the values, for what has none


def plot_progress(
    opt: SafeOptimizer,
    truth: Truths = None,
    optimum: float | None = None,
    axes: Any = None,
    *,
    certified: bool = False,
    trials: Mapping[str, Trial] | None = None,
    numbers: Sequence[int] | None = None,
    title: str | None = None,
    legend: bool | None = None,
    units: Mapping[str, str] | None = None,
) -> Figure:
    """Measured values with the limits, one panel per output; best safe measurement so far for the objective.

    truth       as in `plot_state`; adds measurements whose true value is unsafe to the unsafe ones
    optimum     the best reachable value, where it is known
    axes        one per output, instead of a new figure
    certified   also draw the best certified lower bound after every measurement; replays the run
    trials      by id: also draw the interval that each of them was certified with before it was measured
    numbers     of the measurements, where some were taken back; by default 1, 2, ...
    legend      below the figure; by default only if the figure is new
    units       of the outputs, by name, for the labels

    Aborted experiments and rejected trials have no value: they stand in a strip below, between the measurements before and after
    them.
    """
    state = opt.state
    count = len(state.outputs)
    if axes is None:
        figure = new_figure(7.2, 3.4 + 1.9 * (count - 1))
        panels: list[Axes] = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    else:
        panels = list(np.atleast_1d(np.asarray(axes, dtype=object)).ravel())
        if len(panels) != count:
            raise InvalidValueError(
                f"plot_progress needs one axes per output {[o.name for o in state.outputs]}, got {len(panels)}."
            )
        figure = figure_of(panels[0])
    truths = scene.truths_by_name(state, truth, None)
    unsafe, initial = scene.violations_of(state, truths), scene.initial_of(state)
    if numbers is not None and len(numbers) != state.step:
        raise InvalidValueError(f"plot_progress needs one number per measurement, {state.step}, got {len(numbers)}.")
    at = np.arange(1, state.step + 1, dtype=np.float64) if numbers is None else np.array(numbers, dtype=np.float64)
    first, last = (at[0], at[-1]) if len(at) else (1.0, 1.0)
    first = first - (first == 1.0 and any(abort.step == 0 for abort in state.aborts))
    values = state.values()
    from matplotlib.ticker import MaxNLocator

    with look():
        for ax, output, column in zip(panels, state.outputs, values.T, strict=True):
            dress(ax)
            for i, limit in enumerate(scene.limits_of(output)):
                ax.axhline(limit, gid="limit", zorder=2, **{**LINES["limit"], **({"label": "_"} if i else {})})
            _certificates(ax, output.name, state, at, trials or {})
            for role, mask in (("sample", ~unsafe & ~initial), ("initial", initial & ~unsafe), ("violation", unsafe)):
                if mask.any():
                    scatter(ax, role, at[mask], column[mask])
            ax.set_ylabel(named(output.name, units or {}))
            ax.margins(y=0.12)
            ax.set_xlim(first - 0.5, last + 0.9)
        objective = panels[0]
        ends = np.append(at, last + 0.5)
        best = _running_best(values[:, 0], unsafe)
        if len(best):
            objective.step(ends, np.append(best, best[-1]), where="post", gid="best so far", zorder=3, **LINES["best so far"])
        if certified:
            steps, bounds = _certified(opt)
            x = np.append(at[steps - 1], last + 0.5)
            objective.step(x, np.append(bounds, bounds[-1]), where="post", gid="certified", zorder=3, **LINES["certified"])
        if optimum is not None:
            objective.axhline(optimum, gid="optimum", zorder=2, **LINES["optimum"])
        for ax in panels:
            _given_up(ax, state, at)
        panels[-1].set_xlabel("measurement")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if title:
            objective.set_title(title)
        if legend if legend is not None else axes is None:
            add_legend(figure, panels)
    return figure


def _given_up(axes: Axes, state: State, numbers: FloatArray) -> None:
    """A mark below the values for everything that ended without a measurement; several in a row stand side by side."""
    if not state.aborts:
        return
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    axes.set_ylim(low - _STRIP / (1.0 - _STRIP) * (high - low), high)
    axes.set_yticks(ticks)
    axes.plot([0.0, 1.0], [_STRIP, _STRIP], transform=axes.transAxes, color=GREY, lw=0.6, gid="strip")
    for step in sorted({abort.step for abort in state.aborts}):
        group = [abort for abort in state.aborts if abort.step == step]
        before = numbers[step - 1] if step else (numbers[0] if len(numbers) else 1.0) - 1.0
        for i, abort in enumerate(group, 1):
            role = "rejected" if scene.was_rejected(abort.reason) else "aborted"
            place = axes.get_xaxis_transform()
            scatter(axes, role, [before + i / (len(group) + 1.0)], [0.5 * _STRIP], transform=place, clip_on=False)


def _certificates(axes: Axes, output: str, state: State, numbers: FloatArray, trials: Mapping[str, Trial]) -> None:
    """Vertical lines from the lower to the upper bound of every certified experiment."""
    pairs = zip(numbers, (trials.get(s.trial or "") for s in state.samples), strict=True)
    known = [(x, trial.bounds[output]) for x, trial in pairs if trial is not None]
    if known:
        lows, highs = zip(*(pair for _, pair in known), strict=True)
        axes.vlines([x for x, _ in known], lows, highs, gid="certificate", zorder=2, **LINES["certificate"])


def _running_best(values: FloatArray, unsafe: Any) -> FloatArray:
    """Largest safe measurement up to each one; NaN before the first."""
    masked = np.where(unsafe, -np.inf, values)
    best = np.maximum.accumulate(masked) if len(masked) else masked
    return np.where(np.isinf(best), np.nan, best)


def _certified(opt: SafeOptimizer) -> tuple[Any, FloatArray]:
    """Number of samples and best certified lower bound after each of them."""
    steps, bounds = [], []
    for past in replay(opt):
        try:
            bounds.append(past.best().lower)
        except NoInitialSampleError:
            bounds.append(np.nan)
        steps.append(past.state.step)
    return np.array(steps), np.array(bounds)

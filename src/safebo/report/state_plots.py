"""The state of an optimization as a figure: what is known, what is certified, what was measured.

`plot_state` draws the whole domain of one or two parameters, `plot_slice` one or two parameters of many. Everything is in the
user's units. The sets S, M and G are united over all sub-domains, each on its own grid; a slice that lies between two layers of a
grid shows the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from safebo.optimizer import Best, SafeOptimizer, Trial
from safebo.report import scene
from safebo.report.line import draw_line
from safebo.report.map import draw_map
from safebo.report.options import Options
from safebo.report.scene import Truths
from safebo.report.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_state(
    opt: SafeOptimizer,
    truth: Truths = None,
    axes: Any = None,
    *,
    fixed: Mapping[str, float] | None = None,
    output: str | None = None,
    field: str = "mean",
    sets: Sequence[str] = ("S", "M", "G"),
    cubes: bool | str = False,
    next_trial: bool | Trial = True,
    best: bool = True,
    points: int | None = None,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
    legend: bool | None = None,
    units: Mapping[str, str] | None = None,
) -> Figure:
    """What the optimizer knows now, over one or two parameters.

    truth       the true function of the shown output, called with points (p, n) in user units; or output name -> function
    axes        draw into these axes instead of a new figure; two of them for a map with the truth beside it
    fixed       name -> value for all but one or two parameters, see also `plot_slice`
    output      which output is shown; the objective by default
    field       two parameters: "mean", "lower", "upper", "width", or "margin", the certified distance to the nearer limit
    sets        which of S, M, G are drawn
    cubes       True: every sub-domain; "next": only the one that certifies the next trial
    next_trial  mark what `ask` returns, or this trial
    best        mark what `best` returns
    points      per axis, where the posterior is evaluated
    limits      range of values shown, for several figures with the same scale
    title       above the axes
    legend      below the figure; by default only if the figure is new (`safebo.report.legend` adds one to yours)

    units       of parameters and outputs, by name, for the labels

    What is drawn as the safe set is certified: the trial and the safe measurements that are certified now lie in it. Aborted
    experiments and rejected trials have marks of their own. A measurement is unsafe if it lies outside a limit, or if the true
    value does.
    """
    options = Options(output, field, sets, cubes, next_trial, best, points, limits, title, legend, units or {})
    return _draw(scene.full(opt, fixed), truth, axes, options)


def plot_slice(
    opt: SafeOptimizer,
    vary: str | Sequence[str],
    fixed: Mapping[str, float] | Best | None = None,
    truth: Truths = None,
    axes: Any = None,
    **options: Any,
) -> Figure:
    """One or two parameters of many: the others are held at `fixed`, and what that leaves open at `best()`.

    Measurements off the slice are drawn hollow where it passes them. The options are those of `plot_state`.
    """
    return _draw(scene.slice_of(opt, vary, fixed), truth, axes, Options(**options))


def _draw(cut: scene.Slice, truth: Truths, axes: Any, options: Options) -> Figure:
    truths = scene.truths_by_name(cut.opt.state, truth, options.output)
    with look():
        return (draw_line if len(cut.vary) == 1 else draw_map)(cut, truths, axes, options)

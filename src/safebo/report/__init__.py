"""Figures of an optimization, in one look; needs matplotlib, the extra `plot`.

>>> from safebo import report
>>> report.plot_state(opt, truth=f).savefig("state.png", dpi=150)
>>> report.plot_slice(opt, vary=("kp", "kd")).savefig("slice.png", dpi=150)
>>> report.plot_progress(opt).savefig("progress.png", dpi=150)
>>> report.animate(opt, "run.gif")
"""

from safebo.report.animation import animate
from safebo.report.norms import plot_norms
from safebo.report.progress import plot_progress
from safebo.report.replay import replay
from safebo.report.state_plots import plot_slice, plot_state
from safebo.report.style import legend, new_figure

__all__ = ["animate", "legend", "new_figure", "plot_norms", "plot_progress", "plot_slice", "plot_state", "replay"]

"""A run as an animated GIF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from safebo.exceptions import InvalidValueError
from safebo.optimizer import Best, SafeOptimizer
from safebo.report import scene
from safebo.report.map import all_keys, colour_range
from safebo.report.options import Options
from safebo.report.replay import replay
from safebo.report.scene import Truths
from safebo.report.state_plots import plot_slice
from safebo.report.style import PALETTE, legend, look, require_matplotlib, scatter

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

_COLOURS = 192  # taken from the frames: enough for a heat map, and small files
_SAME = 8  # a colour this close to one of the style is that one: Pillow's search for the nearest is coarse


def animate(
    opt: SafeOptimizer,
    path: str | Path,
    truth: Truths = None,
    *,
    vary: str | Sequence[str] | None = None,
    fixed: Mapping[str, float] | Best | None = None,
    fps: float = 2.0,
    hold: float = 2.0,
    dpi: int = 80,
    every: int = 1,
    title: str = "experiment {step}",
    **options: Any,
) -> Path:
    """Replay a run and write a GIF with one frame per measurement; the first frame shows the initial ones.

    vary, fixed  as in `plot_slice`, for more than two parameters
    fps, hold    frames per second, and the seconds that the last one stays
    dpi          a frame is 7.2 x 4.6 inches for one parameter
    every        draw only every k-th measurement, and the last
    title        "{step}" becomes the number of experiments after the initial measurements
    options      those of `plot_state`; axes and colours keep the scale of the last frame
    """
    if not (fps > 0.0 and hold >= 0.0 and every >= 1 and dpi >= 1):
        raise InvalidValueError(f"animate needs fps > 0, hold >= 0, every >= 1 and dpi >= 1: {fps=}, {hold=}, {every=}, {dpi=}.")
    require_matplotlib()
    given = None if fixed is None else dict(fixed.params if isinstance(fixed, Best) else fixed)
    last = scene.full(opt, given) if vary is None else scene.slice_of(opt, vary, fixed)
    shown = Options(**options)
    truths = scene.truths_by_name(opt.state, truth, shown.output)
    if shown.limits is None:
        number = scene.output_number(opt.state, shown.output)
        line = len(last.vary) == 1
        limits = scene.value_range(opt.state, number, truths, last) if line else colour_range(last, truths, shown)
        shown = changed(shown, limits=limits)
    entries = [role for role, mask in scene.roles(last, truths).items() if mask.any()]
    entries += sorted({role for role, _, _ in scene.given_up(last)})
    entries += ["best"] * shown.best + ["next"] * bool(shown.next_trial)
    frames: list[Image] = []
    initial = -1
    for past in replay(opt):
        initial = past.state.step if initial < 0 else initial
        step = past.state.step - initial
        if step % every and past is not opt:
            continue
        now = {**vars(shown), "title": title.format(step=step), "legend": False}
        figure = plot_slice(past, last.names, last.fixed, truths or None, **now)
        for role in entries:  # the legend must not move when something appears for the first time
            scatter(figure.axes[0], role, [], [])
        if len(last.vary) == 2:
            all_keys(figure.axes[0], opt.state.outputs[scene.output_number(opt.state, shown.output)], shown)
        legend(figure)
        frames.append(_render(figure, dpi))
    return _write(frames, Path(path), fps, hold)


def _render(figure: Figure, dpi: int) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    with look():
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _write(frames: list[Image], path: Path, fps: float, hold: float) -> Path:
    """All frames with one palette: the exact colours of the style, and those of the first, the middle and the last frame."""
    from PIL import Image

    width, height = frames[0].size
    keys = Image.new("RGB", (width, 3 * height))
    for i, frame in enumerate((frames[0], frames[len(frames) // 2], frames[-1])):
        keys.paste(frame, (0, i * height))
    exact = np.array([list(bytes.fromhex(colour[1:])) for colour in PALETTE])
    found = np.array(keys.quantize(_COLOURS).getpalette()).reshape(-1, 3)[:_COLOURS]
    near = np.abs(found[:, None] - exact[None]).max(axis=2).min(axis=1) < _SAME
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([exact, found[~near]]).ravel().tolist())
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [round(1000.0 / fps)] * len(indexed)
    durations[-1] += round(1000.0 * hold)
    path.parent.mkdir(parents=True, exist_ok=True)
    indexed[0].save(path, format="GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0, optimize=False)
    return path

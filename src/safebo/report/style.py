"""One look for every figure: palette, markers, sizes, and a legend outside the data.

The colours are those of Okabe and Ito, which people with colour-vision deficiencies can tell apart; every role also has its own
marker, line style, row or hatch, so that a figure survives a black-and-white printer. Figures are `matplotlib.figure.Figure`
objects: pyplot and its global state are not touched, nothing has to be closed, and no display is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from safebo.exceptions import MissingExtraError
from safebo.extras import how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#000000", "#6E6E6E", "#DDDDDD"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, YELLOW = "#0072B2", "#D55E00", "#CC79A7", "#F0E442"
PALETTE = ("#FFFFFF", BLACK, GREY, LIGHT, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, YELLOW)

SETS = {"S": GREEN, "M": ORANGE, "G": SKY}
SET_NAMES = {"S": "safe set S", "M": "maximisers M", "G": "expanders G"}
HATCHES = {"M": ("\\\\\\", BLACK), "G": ("///", "white")}  # on maps: maximisers lie where it is bright, expanders where it is not

SHADE = "#A59C74"  # the middle of the map's colours, behind the hatches in a legend
COLORMAP = "cividis"  # lightness grows evenly, and it looks the same to most eyes

LINES: dict[str, dict[str, Any]] = {
    "truth": {"color": BLACK, "lw": 1.3, "ls": (0, (4, 1.5)), "label": "true function"},
    "mean": {"color": BLUE, "lw": 1.8, "label": "posterior mean"},
    "limit": {"color": VERMILLION, "lw": 1.3, "ls": (0, (1.2, 1.2)), "label": "safety limit"},
    "mean at limit": {"color": VERMILLION, "lw": 1.3, "ls": (0, (1.2, 1.2)), "label": "mean at the limit"},
    "bound at limit": {"color": VERMILLION, "lw": 1.3, "ls": (0, (3.0, 1.5)), "label": "bound at the limit"},
    "truth at limit": {"color": VERMILLION, "lw": 1.3, "ls": (0, (4, 1.5, 1, 1.5)), "label": "truth at the limit"},
    "margin": {"color": VERMILLION, "lw": 1.3, "ls": (0, (5, 1.5)), "label": "end of this certificate"},
    "optimum": {"color": GREEN, "lw": 1.3, "ls": "-.", "label": "reachable optimum"},
    "best so far": {"color": BLUE, "lw": 1.8, "label": "best safe measurement so far"},
    "certified": {"color": GREEN, "lw": 1.8, "ls": "--", "label": "best certified lower bound"},
    "certificate": {"color": SKY, "lw": 3.0, "alpha": 0.6, "label": "certified before it was measured"},
    "next": {"color": PURPLE, "lw": 1.1, "ls": "-", "label": "_next"},
}
OFF = 0.35
"""How opaque an aborted or rejected experiment is that lies off a slice."""

MARKERS: dict[str, dict[str, Any]] = {  # marker, area, face, edge, width of the edge, label
    role: {"marker": marker, "s": area, "facecolors": face, "edgecolors": edge, "linewidths": width, "label": label}
    for role, marker, area, face, edge, width, label in (
        ("sample", "o", 24, BLACK, "white", 0.5, "measurement"),
        ("initial", "D", 38, "white", BLACK, 1.3, "initial measurement"),
        ("violation", "X", 85, VERMILLION, "white", 0.8, "unsafe measurement"),
        ("aborted", "P", 70, ORANGE, BLACK, 0.9, "aborted experiment"),
        ("rejected", "s", 44, "white", VERMILLION, 1.6, "rejected trial"),
        ("elsewhere", "o", 20, "white", GREY, 1.0, "measurement off the slice"),
        ("best", "*", 190, YELLOW, BLACK, 0.9, "best parameters"),
        ("next", "v", 60, PURPLE, "white", 0.7, "next trial"),
    )
}

_RC: dict[str, Any] = {
    "font.size": 10.0,
    "font.family": "sans-serif",
    "axes.titlesize": 11.0,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "axes.axisbelow": True,
    "text.usetex": False,
}


def require_matplotlib() -> Any:
    """The matplotlib module, or an error that says how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(f"Figures need matplotlib ({error}): {how_to_install('plot')}.") from error
    return matplotlib


@contextmanager
def look() -> Iterator[None]:
    """Font sizes of this package inside the block, the caller's own outside."""
    with require_matplotlib().rc_context(_RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches that belongs to nobody but the caller."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_of(axes: Any) -> Figure:
    """The figure (or sub-figure) that axes belong to."""
    figure: Figure = axes.figure
    return figure


def dress(axes: Axes, *, grid: bool = True) -> None:
    """Light grid, no box, outward ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(not grid)
    for spine in axes.spines.values():
        spine.set(color=GREY, linewidth=0.8)
    axes.tick_params(color=GREY, width=0.8, length=3.5)
    if grid:
        axes.grid(True, color=LIGHT, linewidth=0.6)
    else:
        axes.grid(False)


def scatter(axes: Axes, role: str, x: Any, y: Any, **overrides: Any) -> None:
    """Markers of a role; the artist's gid is the role, so that it can be found again."""
    look_of = {"zorder": 5.0, **MARKERS[role], **overrides}
    axes.scatter(x, y, gid=role, **look_of)


def faded(axes: Axes, role: str, x: float, y: float, clear: bool, **overrides: Any) -> None:
    """A marker that is pale unless `clear`; its legend entry is not."""
    if role not in {artist.get_gid() for artist in axes.collections}:
        scatter(axes, role, [], [])
    scatter(axes, role, [x], [y], alpha=1.0 if clear else OFF, clip_on=False, **{"label": "_", **overrides})


def legend(figure: Figure, axes: Sequence[Axes] | None = None, *, columns: int | None = None) -> None:
    """One legend below all axes, every label once."""
    found: dict[str, Any] = {}
    for each in figure.axes if axes is None else axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    found = {label: found[label] for label in sorted(found, key=_rank)}
    inches = float(figure.bbox.width / figure.dpi)
    fitting = max(1, int((inches - 0.4) / 1.85)) if columns is None else columns  # the longest label takes about 1.85 inches
    rows = -(-len(found) // fitting)
    with look():
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=-(-len(found) // rows), frameon=False,
            handlelength=1.9, columnspacing=1.4, handletextpad=0.6,
        )  # fmt: skip


def _rank(label: str) -> int:
    """Lines first, then markers, then sets, each in the order of its table; unknown labels last."""
    order = [
        *(line["label"] for line in LINES.values()),
        "confidence interval",
        *(marker["label"] for marker in MARKERS.values()),
        *SET_NAMES.values(),
    ]
    name = label.split(",")[0]  # what is said about it comes behind a comma
    return order.index(name) if name in order else len(order)

"""What a run needs of the machine, tried before its first experiment."""

from __future__ import annotations

import math
import warnings

import numpy as np

from safebo.exceptions import SafeboWarning
from safebo.optimizer import SafeOptimizer
from safebo.outputs import Output
from safebo.state import Settings, State


def prepare(settings: Settings) -> None:
    """Compile or load everything that these settings compute with, by two steps of a rehearsal that nobody sees.

    What fails, fails here and not after the first experiment, and no experiment waits for a compiler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)  # they would be about invented measurements
        rehearsal = SafeOptimizer.from_json(State(settings).to_json())
        first, *others = (_inside(output) for output in settings.outputs)
        values = dict(zip((o.name for o in settings.outputs[1:]), others, strict=True))
        rehearsal.tell(settings.domain.from_unit(np.full(settings.domain.dim, 0.5)), first, values or None)
        for _ in range(2):
            trial = rehearsal.ask()
            if trial is None:
                return
            rehearsal.tell(trial, first, values or None)


def _inside(output: Output) -> float:
    """A value inside the limits, of the size that the kernel expects."""
    low, high, size = output.lower_limit, output.upper_limit, math.sqrt(output.kernel.outputscale)
    if low is not None and high is not None:
        return low + 0.5 * (high - low)
    return low + size if low is not None else 0.0 if high is None else high - size

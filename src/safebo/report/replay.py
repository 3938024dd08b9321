"""The past of a run, step by step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace as changed

from safebo.exceptions import NoInitialSampleError, NormRefutedWarning
from safebo.optimizer import SafeOptimizer
from safebo.state import State


def replay(opt: SafeOptimizer) -> Iterator[SafeOptimizer]:
    """The optimizer as it was after its initial samples and after every further one; the last is `opt` itself.

    The recorded norm estimates are used again, so a step costs its intervals and sets only. All but the last are the same object
    in successive states: look at each before taking the next, and do not tell them anything.
    """
    state = opt.state
    first = next((i for i, s in enumerate(state.samples) if s.trial is not None), state.step)
    inside = state.inside()
    if not inside.any():
        raise NoInitialSampleError("There is no safe measurement yet: nothing can be replayed.")
    first = max(first, int(inside.argmax()) + 1)
    past: SafeOptimizer | None = None
    for step in range(first, state.step):
        records = tuple(r for r in state.records if r.step <= step)
        aborts = tuple(a for a in state.aborts if a.step <= step)
        then = changed(state, samples=state.samples[:step], records=records, aborts=aborts)
        past = SafeOptimizer.from_json(State.to_json(then)) if past is None else _moved(past, then)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NormRefutedWarning)  # it was issued when it happened
            past.stop_reason  # noqa: B018 - analyse the step here, where the warning is known to be old
        yield past
    yield opt


def _moved(past: SafeOptimizer, then: State) -> SafeOptimizer:
    """Continue with the sub-domains computed so far: only the records that are new are applied."""
    past._state, past._analysis = then, None
    return past

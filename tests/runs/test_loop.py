"""`drive`: nothing runs before the arguments are checked, and nothing keeps running after an error or a violation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.exceptions import InvalidValueError, PlantError, UnsafeInitialSampleError
from safebo.runs import CallablePlant, drive


class Rig:
    """Counts what happens to it."""

    def __init__(self, value=0.5):
        self.value, self.ran, self.stopped = value, [], 0

    def plant(self):
        return CallablePlant(self.run, emergency_stop=self.stop)

    def run(self, params):
        self.ran.append(dict(params))
        return self.value(len(self.ran)) if callable(self.value) else self.value

    def stop(self):
        self.stopped += 1


def optimizer(**changes):
    return SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, **{"norm": Fixed(1.0), "points_per_axis": 30, **changes})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"initial": {"a": 5.0}}, "5.0"),
        ({"initial": {"b": 0.5}}, "unknown"),
        ({"initial": {"a": np.nan}}, "nan"),
        ({"experiments": "2"}, "experiments"),
        ({"experiments": None}, "experiments"),
        ({"experiments": -1}, "experiments"),
        ({"experiments": 1.5}, "experiments"),
        ({"experiments": np.nan}, "experiments"),
        ({"on_violation": "ignore"}, "on_violation"),
    ],
)
def test_wrong_arguments_move_nothing(arguments, match):
    rig, opt = Rig(), optimizer()
    with pytest.raises(InvalidValueError, match=match):
        drive(opt, rig.plant(), **{"experiments": 2, "initial": {"a": 0.5}, **arguments})
    assert (rig.ran, opt.state.step) == ([], 0)
    with pytest.raises(InvalidValueError, match="not a plant"):
        drive(opt, rig.run, 2, initial={"a": 0.5})
    assert rig.ran == []


def test_every_error_stops_the_plant():
    rig = Rig(-1.0)
    with pytest.raises(UnsafeInitialSampleError):
        drive(optimizer(), rig.plant(), 2, initial={"a": 0.5})
    assert rig.stopped == 1
    rig = Rig()
    with pytest.raises(InvalidValueError, match="missing"):
        drive(optimizer(constraints={"heat": Constraint(upper=1.0)}), rig.plant(), 2, initial={"a": 0.5})
    assert rig.stopped == 1
    rig = Rig()

    def broken(trial, result):
        raise RuntimeError("disk full")

    opt = optimizer()
    with pytest.raises(RuntimeError, match="disk full"):
        drive(opt, rig.plant(), 2, initial={"a": 0.5}, on_result=broken)
    assert (rig.stopped, opt.state.step) == (1, 2)  # what was measured is kept


def test_a_stop_that_fails_does_not_hide_the_error():
    def stop():
        raise OSError("no route to the rig.")

    with pytest.raises(PlantError, match=r"division by zero AND THE EMERGENCY STOP FAILED: no route") as caught:
        drive(optimizer(), CallablePlant(lambda p: 1 / 0, emergency_stop=stop), 2, initial={"a": 0.5})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("on_violation", "experiments"), [("stop", 2), ("continue", 4)])
def test_a_violation_is_recorded_and_ends_the_loop_unless_told_otherwise(on_violation, experiments):
    rig, opt = Rig(lambda n: -0.01 if n == 3 else 0.5), optimizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = drive(opt, rig.plant(), 4, initial={"a": 0.5}, on_violation=on_violation)
    assert (result.experiments, result.violations, result.stop_reason) == (experiments, 1, None)
    assert len(rig.ran) == experiments + 1 == opt.state.step and opt.state.values().min() == -0.01

"""`drive`: nothing runs before the arguments are checked, and nothing keeps running after an error or a violation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.exceptions import ExperimentAborted, InvalidValueError, PlantError, StopFailedWarning, UnsafeInitialSampleError
from safebo.runs import CallablePlant, Campaign, Store, Watchdog, drive


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
    with pytest.raises(ExperimentAborted, match=r"lacks \['heat'\]"):
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

    with pytest.raises(PlantError, match=r"division by zero AND THE EMERGENCY STOP FAILED: .*no route") as caught:
        drive(optimizer(), CallablePlant(lambda p: 1 / 0, emergency_stop=stop), 2, initial={"a": 0.5})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    watched = Watchdog(CallablePlant(f, emergency_stop=stop), timeout=5)
    with pytest.raises(PlantError) as caught:
        drive(optimizer(), watched, 2, initial={"a": 0.5}, on_result=lambda trial, result: 1 / 0)
    assert str(caught.value).count("STOP FAILED") == str(caught.value).count("by hand") == 1 and ".." not in str(caught.value)


def f(params):
    return 0.5


def no_stop():
    raise OSError("no route to the rig")


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("watched", [False, True])
def test_an_interrupt_stays_one(watched):
    rig = Rig()
    plant = Watchdog(rig.plant(), timeout=5) if watched else rig.plant()
    opt = optimizer()
    with pytest.raises(KeyboardInterrupt) as caught:
        drive(opt, plant, 2, initial={"a": 0.5}, on_result=interrupt)
    assert (rig.stopped, opt.state.step) == (1, 2) and not getattr(caught.value, "__notes__", ())


@pytest.mark.parametrize("watched", [False, True])
def test_a_stop_that_fails_after_an_interrupt_is_said_and_does_not_replace_it(watched):
    plant = CallablePlant(f, emergency_stop=no_stop)
    plant = Watchdog(plant, timeout=5) if watched else plant
    with (
        pytest.warns(StopFailedWarning, match=r"^THE EMERGENCY STOP FAILED: OSError: no route to the rig. Switch.*by hand.$"),
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        drive(optimizer(), plant, 2, initial={"a": 0.5}, on_result=interrupt)
    assert len(caught.value.__notes__) == 1
    with pytest.raises(KeyboardInterrupt) as caught:  # also where warnings are errors
        drive(optimizer(), plant, 2, initial={"a": 0.5}, on_result=interrupt)
    assert "no route" in caught.value.__notes__[0]


def test_an_answer_with_limits_that_nobody_asked_for_is_an_aborted_experiment():
    rig, opt = Rig(lambda n: 0.5 if n < 3 else {"objective": 0.25, "constraints": {"torque": -1.1}}), optimizer()
    with pytest.raises(
        ExperimentAborted, match=r"Experiment 2 of 4 .*has unknown \['torque'\].*0\.25.*-1\.1.*was stopped"
    ) as error:
        drive(opt, rig.plant(), 4, initial={"a": 0.5})
    assert (rig.stopped, opt.state.step, len(rig.ran)) == (1, 2, 3) and error.value.params == rig.ran[-1]
    result = drive(opt, rig.plant(), 4, on_abort=lambda trial, aborted: False)
    assert len(result.aborted) == 1 and opt.state.step == 2
    with pytest.raises(ExperimentAborted, match=r"EMERGENCY STOP FAILED.*no route") as error:
        drive(opt, CallablePlant(rig.run, emergency_stop=no_stop), 4)
    assert "was stopped" not in str(error.value)


@pytest.mark.parametrize(("on_violation", "experiments"), [("stop", 2), ("continue", 4)])
def test_a_violation_is_recorded_and_ends_the_loop_unless_told_otherwise(on_violation, experiments):
    rig, opt = Rig(lambda n: -0.01 if n == 3 else 0.5), optimizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = drive(opt, rig.plant(), 4, initial={"a": 0.5}, on_violation=on_violation)
    assert (result.experiments, result.violations, result.stop_reason) == (experiments, 1, None)
    assert len(rig.ran) == experiments + 1 == opt.state.step and opt.state.values().min() == -0.01


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
@pytest.mark.parametrize("on_violation", ["stop", "continue"])
def test_a_violation_stops_the_plant_before_anybody_looks_at_it(on_violation):
    rig, opt, seen = Rig(lambda n: -0.01 if n == 3 else 0.5), optimizer(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drive(
            opt,
            rig.plant(),
            4,
            initial={"a": 0.5},
            on_violation=on_violation,
            on_result=lambda trial, result: seen.append((result.objective, rig.stopped)),
        )
    if on_violation == "stop":
        assert (seen, rig.stopped) == ([(0.5, 0), (-0.01, 1)], 1)
    else:
        assert (len(seen), rig.stopped) == (4, 0)


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
def test_a_stop_that_fails_after_a_violation_is_said():
    rig, opt, seen, stops = Rig(lambda n: -0.01 if n == 2 else 0.5), optimizer(), [], []

    def no_stop():
        stops.append(1)
        raise OSError("relay does not answer")

    plant = CallablePlant(rig.run, emergency_stop=no_stop)
    with pytest.raises(PlantError, match=r"outside a limit.*THE EMERGENCY STOP FAILED: OSError: relay does not answer"):
        drive(opt, plant, 4, initial={"a": 0.5}, on_result=lambda trial, result: seen.append(result.objective))
    assert (seen, stops, opt.state.step) == ([-0.01], [1], 2)  # it is recorded


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
@pytest.mark.parametrize("on_violation", ["stop", "continue"])
@pytest.mark.parametrize("how", ["stop", "violation", "pause"])
def test_a_stored_run_that_is_stopped_elsewhere_stops_the_plant(tmp_path, how, on_violation):
    opt = optimizer()
    opt.save(tmp_path / "x.db", "run")
    rig = Rig()

    def elsewhere(trial, result):
        with Store.open(tmp_path / "x.db") as store:
            other = Campaign.open(store, "run")
            other.tell({"a": 0.9}, -1.0) if how == "violation" else getattr(other, how)("smoke")

    result = drive(opt, rig.plant(), 4, initial={"a": 0.5}, on_result=elsewhere, on_violation=on_violation)
    assert result.experiments == 1 and result.stop_reason.value == {"stop": "stopped", "pause": "paused"}.get(how, how)
    assert rig.stopped == (how != "pause")
    assert drive(opt, Rig().plant(), 4).experiments == 0

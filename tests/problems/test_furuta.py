"""The Furuta pendulum: physics against formulas, the device's imperfections, the controller, and the tuning problem."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from safebo.exceptions import InvalidValueError
from safebo.problems.furuta import ENVIRONMENT, NOMINAL, PERTURBED, START, Controller, FurutaPendulum, FurutaProblem, Phase
from safebo.problems.furuta.controller import ARM_LIMIT, FALL, HARD_ARM_LIMIT, RateFilter, gains
from safebo.problems.furuta.environment import CONTROL_STEP
from safebo.problems.furuta.experiment import FALLEN, SCALE, STEPS, reward_of, run_experiment
from safebo.problems.furuta.model import PHYSICS_STEP, build
from safebo.problems.furuta.render import film

SMOOTH = replace(NOMINAL, arm_damping=0.0, pendulum_damping=0.0, arm_friction=0.0, pendulum_friction=0.0)
OPEN = replace(SMOOTH, resistance=1e9)  # no current: neither torque nor back-EMF


def simulate(parameters, state, seconds, voltage=0.0, integrator="RK4"):
    """States (steps, 4) and total energies of a free motion."""
    model, data = build(parameters, integrator=integrator)
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    data.qpos[:], data.qvel[:], data.ctrl[0] = state[:2], state[2:], voltage
    states, energies = [], []
    for _ in range(round(seconds / PHYSICS_STEP)):
        mujoco.mj_step(model, data)
        states.append(np.concatenate([data.qpos, data.qvel]))
        energies.append(data.energy.sum())
    return np.array(states), np.array(energies)


def frequency(signal):
    """Radians per second, from the zero crossings."""
    crossings = np.flatnonzero(np.diff(np.sign(signal)) != 0)
    at = crossings - signal[crossings] / (signal[crossings + 1] - signal[crossings])
    return math.pi / (np.diff(at).mean() * PHYSICS_STEP)


# -- physics -----------------------------------------------------------------------------------------------------------------


def test_energy_is_conserved_without_friction_and_current():
    for integrator, tolerance in (("RK4", 1e-7), ("implicitfast", 0.02)):
        _, energy = simulate(OPEN, (0.3, 2.0, 5.0, -3.0), 5.0, integrator=integrator)
        scale = NOMINAL.pendulum_mass * NOMINAL.gravity * NOMINAL.pendulum_length
        assert np.ptp(energy) < tolerance * scale


def test_friction_takes_energy():
    _, energy = simulate(NOMINAL, (0.0, 2.0, 0.0, 0.0), 3.0)
    assert energy[-1] < energy[0] and np.diff(energy).max() < 1e-5 * np.ptp(energy)


def test_the_pendulum_swings_like_a_rod():
    heavy = replace(OPEN, arm_mass=1e4)  # the arm does not move
    states, _ = simulate(heavy, (0.0, math.pi + 0.01, 0.0, 0.0), 5.0)
    assert frequency(states[:, 1] - math.pi) == pytest.approx(
        math.sqrt(1.5 * NOMINAL.gravity / NOMINAL.pendulum_length), rel=1e-3
    )


def test_hanging_both_swing_at_the_linearised_frequency():
    states, _ = simulate(OPEN, (0.0, math.pi + 0.01, 0.0, 0.0), 5.0)
    expected = np.abs(np.linalg.eigvals(OPEN.linearised(upright=False)[0]).imag).max()
    assert expected > 1.1 * math.sqrt(1.5 * NOMINAL.gravity / NOMINAL.pendulum_length)  # the arm gives way
    assert frequency(states[:, 1] - math.pi) == pytest.approx(expected, rel=1e-3)


def test_upright_it_falls_at_the_linearised_rate():
    rate = np.linalg.eigvals(SMOOTH.linearised()[0]).real.max()
    states, _ = simulate(SMOOTH, (0.0, 1e-6, 0.0, 1e-6 * rate), 0.6)
    half = len(states) // 2
    assert math.log(states[-1, 1] / states[half, 1]) / ((len(states) - 1 - half) * PHYSICS_STEP) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("upright", [True, False])
def test_the_model_is_the_formula_near_rest(upright):
    smooth = replace(NOMINAL, arm_friction=0.0, pendulum_friction=0.0)
    model, data = build(smooth)

    def acceleration(x, u):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[0] = (x[0], x[1] + (0.0 if upright else math.pi)), x[2:], u
        mujoco.mj_forward(model, data)
        return data.qacc.copy()

    a, b = smooth.linearised(upright=upright)
    step = 1e-6
    measured = np.stack([(acceleration(step * e, 0.0) - acceleration(-step * e, 0.0)) / (2.0 * step) for e in np.eye(4)], axis=1)
    np.testing.assert_allclose(measured, a[2:], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(acceleration(np.zeros(4), 1.0), b[2:], rtol=1e-4)


def test_the_motor_alone():
    motor = replace(SMOOTH, pendulum_mass=1e-5)
    states, _ = simulate(motor, (0.0, math.pi, 0.0, 0.0), 12.0, voltage=1.0)
    assert states[-1, 2] == pytest.approx(1.0 / motor.motor_constant, rel=1e-3)  # no-load speed
    constant = motor.arm_inertia * motor.resistance / motor.motor_constant**2
    reached = states[round(constant / PHYSICS_STEP) - 1, 2] / states[-1, 2]
    assert reached == pytest.approx(1.0 - math.exp(-1.0), rel=1e-3)


def test_coulomb_friction_holds_the_arm():
    stuck = NOMINAL.arm_friction * NOMINAL.resistance / NOMINAL.motor_constant
    for share, moves in ((0.8, False), (1.5, True)):
        states, _ = simulate(NOMINAL, (0.0, math.pi, 0.0, 0.0), 1.0, voltage=share * stuck, integrator="implicitfast")
        assert (abs(states[-1, 0]) > NOMINAL.resolution) == moves


def test_parameters_are_checked():
    for name, value in (
        ("pendulum_mass", 0.0), ("delay", -0.1), ("gravity", math.nan), ("gravity", "9.81"), ("counts", 2.5), ("counts", None),
        ("delay", 1e9), ("delay", 1.1),
    ):  # fmt: skip
        with pytest.raises(InvalidValueError, match=f"{name}.*{value!r}"):
            replace(NOMINAL, **{name: value})
    assert replace(NOMINAL, counts=2000, delay=0.05).resolution == 2.0 * math.pi / 2000


# -- environment -------------------------------------------------------------------------------------------------------------


# the action is a voltage, so that gains have units
@pytest.mark.filterwarnings("ignore:.*recommend using a symmetric and normalized space:UserWarning")
def test_gymnasium_accepts_the_environment():
    check_env(FurutaPendulum(PERTURBED, disturbance=1e-3), skip_render_check=True)


def test_it_is_registered():
    environment = gymnasium.make(ENVIRONMENT)
    observation, _ = environment.reset(seed=1)
    assert environment.unwrapped.parameters == NOMINAL and abs(observation[1]) > 3.0
    environment.close()


def test_encoders_are_quantised_and_the_amplifier_saturates():
    environment = FurutaPendulum()
    environment.reset(seed=0)
    for _ in range(40):
        observation, _, _, _, info = environment.step(np.array([25.0]))
    counts = observation / NOMINAL.resolution
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-6)
    assert info["voltage"] == NOMINAL.max_voltage
    assert abs(observation[0] - info["state"][0]) <= 0.5001 * NOMINAL.resolution
    with pytest.raises(InvalidValueError, match="NaN"):
        environment.step(np.array([math.nan]))


@pytest.mark.parametrize("action", [[1.0, 2.0], [], "1.0", ["1.0"], None, True, {}, 1j, [[1.0], [2.0, 3.0]]])
def test_an_action_is_one_number(action):
    environment = FurutaPendulum()
    _, before = environment.reset(seed=0)
    with pytest.raises(InvalidValueError, match=re.escape(repr(action))):
        environment.step(action)
    assert environment._info(0.0)["state"].tolist() == before["state"].tolist()  # nothing has moved


@pytest.mark.parametrize("action", [2, 2.0, [2.0], np.array([[2.0]]), np.float32(2.0)])
def test_a_voltage_may_come_in_any_shape_of_one_number(action):
    environment = FurutaPendulum()
    environment.reset(seed=0)
    assert environment.step(action)[4]["voltage"] == 2.0


@pytest.mark.parametrize("disturbance", [-1.0, math.nan, math.inf, "0.1", None])
def test_a_disturbance_is_a_standard_deviation(disturbance):
    for make in (FurutaPendulum, FurutaProblem):
        with pytest.raises(InvalidValueError, match=f"disturbance.*{disturbance!r}"):
            make(disturbance=disturbance)


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.019])
def test_the_voltage_arrives_after_the_delay(delay):
    environment = FurutaPendulum(replace(SMOOTH, delay=delay))
    environment.reset(options={"state": (0.0, math.pi, 0.0, 0.0)})
    states = np.array([environment.step(np.array([5.0]))[4]["state"] for _ in range(8)])
    moved = np.abs(states[:, 2]) > 1e-9
    first = math.floor(delay / CONTROL_STEP + 1e-9)
    assert not moved[:first].any() and moved[first:].all()
    acceleration = SMOOTH.linearised(upright=False)[1][2] * 5.0
    assert states[first, 2] == pytest.approx(acceleration * (CONTROL_STEP * (first + 1) - delay), rel=0.05)


def test_reset_starts_where_it_is_told():
    environment = FurutaPendulum(disturbance=1e-3)
    _, info = environment.reset(options={"state": (0.1, 0.2, 0.3, 0.4)})
    np.testing.assert_allclose(info["state"], (0.1, 0.2, 0.3, 0.4))
    with pytest.raises(InvalidValueError, match="four finite"):
        environment.reset(options={"state": (0.1, 0.2)})
    with pytest.raises(InvalidValueError, match="render_mode"):
        FurutaPendulum(render_mode="human")


def test_an_arm_that_winds_up_its_cable_ends_the_episode():
    environment = FurutaPendulum()
    environment.reset(seed=0)
    over = [environment.step(np.array([10.0]))[2] for _ in range(200)]
    assert over[-1] and not over[0]


def test_pictures():
    frames = film(NOMINAL, [[0.0, 0.0], [1.0, math.pi]], (60, 80))
    if frames is None:
        pytest.skip("no OpenGL")
    assert frames.shape == (2, 60, 80, 3) and (frames[0] != frames[1]).any() and np.ptp(frames) > 50


# -- controller --------------------------------------------------------------------------------------------------------------


def test_rates_come_from_encoder_differences():
    rates, angle, rate = RateFilter(CONTROL_STEP), 3.0, 0.0
    for _ in range(100):
        after = (angle + 0.01 + math.pi) % (2.0 * math.pi) - math.pi  # passes π
        rate, angle = rates.update(rate, angle, after), after
    assert rate == pytest.approx(2.0, rel=1e-6)


def test_the_sign_of_the_feedback():
    a, b = NOMINAL.linearised()
    k = np.array(gains(START))
    assert np.linalg.eigvals(a - np.outer(b, k)).real.max() < 0.0
    for a1 in np.linspace(0.0, 1.0, 11):
        for a2 in np.linspace(0.0, 1.0, 11):  # with the other sign nothing balances
            assert np.linalg.eigvals(a + np.outer(b, gains((a1, a2)))).real.max() > 0.0
    np.testing.assert_allclose(k, (-2.39, 42.4, -1.504, 3.034))


@pytest.mark.parametrize("parameters", [NOMINAL, PERTURBED])
def test_swing_up_from_complete_rest(parameters):
    environment, controller = FurutaPendulum(parameters), Controller(START, START, CONTROL_STEP)
    observation, _ = environment.reset(options={"state": (0.0, math.pi, 0.0, 0.0)})
    steps = 0
    while controller.phase is not Phase.BALANCE and steps < 800:  # 4 s
        observation, *_ = environment.step(np.array([controller(observation)]))
        steps += 1
    assert controller.phase is Phase.BALANCE and steps * CONTROL_STEP < 3.0


def test_phases():
    controller = Controller((0.3, 0.35), START, CONTROL_STEP)
    assert controller(np.array([0.0, -math.pi])) > 1.0 and controller.phase is Phase.SWING_UP  # a kick out of rest
    for _ in range(3):
        controller(np.array([0.0, -0.1]))
        controller._rates = (0.0, 0.0)
    assert controller.phase is Phase.CATCH
    for _ in range(400):
        controller(np.array([0.0, 0.0]))
    assert controller.phase is Phase.BALANCE
    controller._rates = (0.0, 0.0)
    controller._angles = (0.1, 0.0)
    assert controller(np.array([0.1, 0.0])) == pytest.approx(-gains((0.3, 0.35))[0] * 0.1)
    assert controller(np.array([ARM_LIMIT + 0.01, 0.0])) == 0.0 and controller.phase is Phase.OFF
    assert controller(np.array([0.0, 0.0])) == 0.0 and controller.phase is Phase.OFF


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_an_arm_beyond_its_hard_limit_switches_the_motor_off_in_every_phase(phase, side):
    controller = Controller(START, START, CONTROL_STEP)
    controller.phase = phase
    for angles in ((side * (HARD_ARM_LIMIT + 0.01), 0.0), (0.0, 0.0), (0.0, math.pi)):  # and it stays off
        assert controller(np.array(angles)) == 0.0 and controller.phase is Phase.OFF


def test_a_catch_is_given_up_at_the_arm_s_limit():
    controller = Controller(START, START, CONTROL_STEP)
    controller.phase = Phase.CATCH
    controller(np.array([ARM_LIMIT + 0.01, 0.0]))
    assert controller.phase is Phase.SWING_UP


@pytest.mark.parametrize("parameters", [NOMINAL, PERTURBED])
def test_a_motor_with_swapped_wires_is_switched_off(parameters):
    environment, controller = FurutaPendulum(parameters), Controller(START, START, CONTROL_STEP)
    observation, _ = environment.reset(seed=0)
    voltages, off = [], None
    for step in range(2000):
        voltages.append(controller(observation))
        off = step if off is None and controller.phase is Phase.OFF else off
        observation, *_, info = environment.step(np.array([-voltages[-1]]))
    assert off is not None and off * CONTROL_STEP < 2.0 and not np.any(voltages[off:])
    assert abs(info["state"][2]) < 0.1  # it coasts, and comes to rest


def test_the_swing_up_stays_away_from_the_hard_limit(perturbed):
    for seed in (3, 608018051):  # the second has the widest swing of the committed study
        experiment = perturbed.experiment(START, seed)
        before = np.abs(experiment.states[: experiment.start, 0]).max()
        assert experiment.caught and before < HARD_ARM_LIMIT - math.radians(25.0)


# -- problem -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def perturbed():
    return FurutaProblem.perturbed()


def test_the_start_is_good_in_simulation_and_mediocre_on_the_device(perturbed):
    nominal = FurutaProblem.nominal().initial_value
    assert perturbed.threshold == 0.0 and perturbed.is_safe(START)
    assert nominal > perturbed.initial_value + 5.0 * perturbed.noise > 5.0 * perturbed.noise


def test_the_problem_is_worth_solving(perturbed):
    assert perturbed.value((0.15, 0.3)) > perturbed.initial_value + 4.0 * perturbed.noise  # better, beyond noise
    for unsafe in ((0.239, 0.55), (0.239, 0.2)):  # on either side, and no further away than the better ones
        assert perturbed.value(unsafe) < 0.0 and not perturbed.is_safe(unsafe)


def test_the_noise_is_as_stated(perturbed):
    for a in (START, (0.15, 0.3)):
        rewards = [perturbed.experiment(a, 100 + seed).reward for seed in range(10)]
        assert min(rewards) > 0.0 and 0.4 * perturbed.noise < np.std(rewards) < 1.3 * perturbed.noise


@pytest.mark.parametrize("a", [START, (0.3, 0.32), (0.239, 0.7), (0.6, 0.1), (1.0, 0.0)])
def test_the_reward_is_negative_exactly_where_it_falls(perturbed, a):
    e = perturbed.experiment(a, 3)
    stood = len(e.states) - e.start
    assert e.caught and e.fell == (stood < STEPS) == (e.reward < 0.0)
    worst = np.abs(e.states[e.start :, 1]).max()
    assert (worst > 0.9 * FALL) if e.fell else (worst < FALL)
    assert e.time[e.start] == 0.0 and np.abs(e.voltages).max() <= PERTURBED.max_voltage
    if e.fell:
        assert e.reward == pytest.approx(FALLEN * (1.0 - stood / STEPS))
    else:
        assert e.reward == reward_of(e.states[e.start :], e.voltages[e.start :], PERTURBED.max_voltage)


def test_the_reward_of_a_known_motion():
    states = np.tile([0.1 * ARM_LIMIT, 0.1 * FALL, 0.0, 0.0], (STEPS, 1))
    assert reward_of(states, np.full(STEPS, 1.0), 10.0) == pytest.approx((100.0 - 1.0) / SCALE)
    assert math.isfinite(reward_of(0.0 * states, np.zeros(STEPS), 10.0))
    assert reward_of(10.0 * states, np.full(STEPS, 10.0), 10.0) == pytest.approx(0.0, abs=1e-12)


def test_a_pendulum_that_is_never_caught_is_unsafe():
    weak = FurutaPendulum(replace(NOMINAL, max_voltage=0.3))
    e = run_experiment(weak, START, START, 0)
    assert not e.caught and not e.fell and e.reward == FALLEN < 0.0


def test_experiments_repeat(perturbed):
    assert perturbed.experiment(START, 5).reward == FurutaProblem.perturbed().experiment({"a1": 0.239, "a2": 0.424}, 5).reward
    one, two = perturbed.plant(7), perturbed.plant(7)
    first = [one(START), one(START)]
    assert first == [two(START), two(START)] and first[0] != first[1]
    with pytest.raises(InvalidValueError, match="a2"):
        perturbed.measure({"a1": 0.2, "a2": 1.2}, np.random.default_rng(0))


# -- imports -----------------------------------------------------------------------------------------------------------------


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_the_package_itself_does_not_need_them():
    done = python("import sys, safebo, safebo.runs, safebo.studies.reproduce; print({'gymnasium', 'mujoco'} & set(sys.modules))")
    assert done.returncode == 0 and done.stdout.strip() == "set()", done.stderr


def test_without_them_the_error_says_what_to_install():
    done = python("import sys; sys.modules['mujoco'] = None; import safebo.problems.furuta")
    assert "MissingExtraError" in done.stderr and "pip install '.[furuta]'" in done.stderr

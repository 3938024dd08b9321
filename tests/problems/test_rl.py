"""The RL benchmarks: environments, actors, scores, problems, training and the quick study, with the real simulators."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from safebo import cli
from safebo.exceptions import InvalidValueError, SafeboError
from safebo.problems import rendering
from safebo.problems.rl import RLProblem, environments, pictures
from safebo.problems.rl.actor import POLICIES, Actor
from safebo.problems.rl.environments import ENVIRONMENTS, make
from safebo.problems.rl.scoring import FAILED, SCORES, Trajectory, score
from safebo.studies import train_policy
from safebo.studies.reproduce import rl_landscapes

NAMES = tuple(ENVIRONMENTS)
LANDSCAPES = POLICIES.with_name("landscapes")
MAPPED = [name for name in NAMES if (LANDSCAPES / f"{name}.csv").exists()]
MUJOCO = [name for name in NAMES if ENVIRONMENTS[name].model]


@pytest.fixture(scope="module")
def problems():
    return {name: RLProblem(name) for name in NAMES}


# -- environments --------------------------------------------------------------------------------------------------------------


def test_six_environments_of_the_papers_dimensions():
    assert {name: len(row.task.biases) for name, row in ENVIRONMENTS.items()} == {
        "cart_pole": 1, "mountain_car": 1, "swimmer": 2, "lunar_lander": 2, "half_cheetah": 6, "ant": 8,
    }  # fmt: skip
    assert {name: (*row.task.cubes, row.task.points) for name, row in ENVIRONMENTS.items()} == {
        "cart_pole": (3, 0.1, 1000), "mountain_car": (3, 0.1, 1000), "swimmer": (5, 0.1, 500), "lunar_lander": (5, 0.1, 500),
        "half_cheetah": (10, 0.05, 8), "ant": (10, 0.05, 5),
    }  # fmt: skip


@pytest.mark.parametrize("name", MUJOCO)
def test_a_changed_model_has_other_masses_or_inertias(name):
    envs = [make(name, changed=c) for c in (False, True)]  # a model does not outlive its environment
    nominal, changed = (env.unwrapped.model for env in envs)
    assert not np.allclose(nominal.geom_size, changed.geom_size)
    assert not np.allclose(nominal.body_inertia, changed.body_inertia)
    assert nominal.nq == changed.nq and nominal.nu == changed.nu


def test_the_swimmers_limbs_follow_the_printed_numbers():
    env = make("swimmer", changed=True)
    model = env.unwrapped.model
    assert [model.geom_size[g, 0] for g in range(1, 4)] == pytest.approx([0.3, 0.1, 0.3])  # torso, mid, back


def test_a_changed_model_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = make("ant", changed=True)
    env.reset(seed=0)
    assert not list(tmp_path.iterdir())


def test_only_mujocos_known_deprecation_is_silenced(tmp_path, monkeypatch, capfd):
    import mujoco

    monkeypatch.chdir(tmp_path)
    make("half_cheetah", changed=True)
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())
    assert mujoco.get_mju_user_warning() is None
    with environments._without_deprecation():
        hear = mujoco.get_mju_user_warning()
        hear(f"{environments.DEPRECATED} and will be removed")
        hear("another warning")
    assert capfd.readouterr().err == "WARNING: another warning\n"


def test_mountain_car_loses_power():
    assert make("mountain_car", changed=False).unwrapped.power == 0.0015
    assert make("mountain_car", changed=True).unwrapped.power == 0.0013


def test_the_wind_blows_one_way():
    env = make("lunar_lander", changed=True)
    for seed in range(3):
        env.reset(seed=seed)
        still = env.unwrapped.lander.linearVelocity[0]
        for _ in range(20):
            env.step(np.zeros(2, np.float32))
        assert env.unwrapped.lander.linearVelocity[0] > still + 0.1


def test_unknown_environments_are_refused():
    with pytest.raises(InvalidValueError, match=r"'pendulum'.*cart_pole"):
        RLProblem("pendulum")
    with pytest.raises(InvalidValueError, match=r"\['a'\].*cart_pole"):
        RLProblem(["a"])


# -- actors --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_shipped_actors_are_small_and_fit_their_environment(name):
    actor, env = Actor.shipped(name), make(name, changed=False)
    assert env.observation_space.shape == (actor.observations,) and env.action_space.shape == (actor.actions,)
    np.testing.assert_array_equal(actor.low, env.action_space.low)
    assert (POLICIES / f"{name}.safetensors").stat().st_size < 1_000_000
    about = json.loads((POLICIES / f"{name}.json").read_text())
    assert about["algorithm"] == "soft actor-critic" and about["environment"]["id"] == ENVIRONMENTS[name].id
    assert len(about["curve"]) > 1 and about["curve"][-1]["steps"] > 1000


@pytest.mark.parametrize("sde", [False, True])
def test_the_numpy_actor_agrees_with_the_trainer(sde, tmp_path):
    from stable_baselines3 import SAC

    env = make("cart_pole", changed=False)
    model = SAC("MlpPolicy", env, seed=3, device="cpu", use_sde=sde, policy_kwargs={"net_arch": [32, 16]})
    train_policy.export(model).save(tmp_path / "a.safetensors", {})
    actor = Actor.load(tmp_path / "a.safetensors")
    observations = np.random.default_rng(0).normal(scale=3.0, size=(50, 4))
    for observation in observations:
        expected, _ = model.predict(observation, deterministic=True)
        np.testing.assert_allclose(actor(observation), expected, atol=1e-5)
    assert np.isinf(actor.clip) != sde


def test_actors_whose_layers_do_not_fit_are_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(InvalidValueError, match="must fit"):
        Actor((np.ones((3, 2), np.float32), np.ones((1, 4), np.float32)), (np.ones(3, np.float32), one), -one, one)


def test_actors_of_another_environment_are_refused():
    with pytest.raises(InvalidValueError, match=r"'cart_pole' has 4 observations and 1 actions.*8 observations and 2 actions"):
        RLProblem("cart_pole", actor=Actor.shipped("swimmer"))
    problem = RLProblem("cart_pole", actor=Actor.shipped("cart_pole"))
    assert problem.episode([0.0], 0) == RLProblem("cart_pole").episode([0.0], 0)


# -- scores --------------------------------------------------------------------------------------------------------------------


def path(observations, *, ended, horizon, rewards=None):
    observations = np.asarray(observations, float)
    rewards = np.zeros(len(observations) - 1) if rewards is None else np.asarray(rewards, float)
    return Trajectory(observations, rewards, ended, horizon)


def test_a_dropped_pole_is_negative_however_late():
    c = ENVIRONMENTS["cart_pole"].task.constants
    upright = np.zeros((11, 4))
    assert score("cart_pole", path(upright, ended=False, horizon=10), c).score == 1.0
    dropped = score("cart_pole", path(upright[:10], ended=True, horizon=10), c)
    assert dropped.failed and dropped.score == FAILED
    assert score("cart_pole", path(upright[:3], ended=True, horizon=10), c).score < FAILED


def test_a_car_that_misses_the_goal_is_negative():
    c = ENVIRONMENTS["mountain_car"].task.constants
    arrived = score("mountain_car", path(np.zeros((3, 2)), ended=True, horizon=9, rewards=[-1.0, 91.0]), c)
    assert arrived.score == pytest.approx(0.5) and not arrived.failed
    assert score("mountain_car", path(np.zeros((10, 2)), ended=False, horizon=9, rewards=-0.01 * np.ones(9)), c).score == -1.0


def test_a_lander_rests_waits_or_crashes():
    c = ENVIRONMENTS["lunar_lander"].task.constants
    flight = np.zeros((6, 8))
    rest, crash = ([0.0, 0.0, 0.0, 0.0, last] for last in (100.0, -100.0))
    assert score("lunar_lander", path(flight, ended=True, horizon=10, rewards=rest), c).score == 0.75
    waiting = score("lunar_lander", path(flight, ended=False, horizon=5), c)
    assert waiting.score == c["waiting"] and not waiting.failed
    crashed = score("lunar_lander", path(flight, ended=True, horizon=10, rewards=crash), c)
    assert crashed.score == -1.0 and crashed.failed


@pytest.mark.parametrize("name", ["half_cheetah", "ant"])
def test_a_runner_that_falls_is_negative(name):
    c = ENVIRONMENTS[name].task.constants
    steady = np.zeros((11, 27))
    steady[:, 8 if name == "half_cheetah" else 13] = c["speed"]
    assert score(name, path(steady, ended=False, horizon=10), c).score == pytest.approx(1.0)
    steady[6:, 1 if name == "half_cheetah" else 2] = 2.0  # pitch, or quaternion x
    fallen = score(name, path(steady, ended=False, horizon=10), c)
    assert fallen.failed and fallen.score == FAILED  # five good steps, five after the fall


def test_a_swimmer_that_drifts_back_is_negative():
    c = ENVIRONMENTS["swimmer"].task.constants
    drift = np.zeros((11, 8))
    drift[1:, 3] = 0.5 * c["speed"]
    assert score("swimmer", path(drift, ended=False, horizon=10), c).score == pytest.approx(0.5)
    assert score("swimmer", path(-drift, ended=False, horizon=10), c).failed


def test_every_environment_has_a_score():
    assert set(SCORES) == set(NAMES)


# -- problems ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_starts_safe_and_repeats(name):
    problem = RLProblem(name)
    problem.episodes = 3
    assert problem.domain.dim == problem.actor.actions and problem.threshold == 0.0
    episode = problem.episode(problem.initial, 1)
    assert episode == problem.episode(problem.initial, 1) and -1.0 <= episode.score <= 3.0
    first, second = problem.plant(5)(problem.initial), problem.plant(5)(problem.initial)
    assert first == second > 0.0


@pytest.mark.parametrize("name", MAPPED)
def test_the_committed_landscape_is_the_one_of_this_problem(name, problems):
    problem, table = problems[name], problems[name].landscape()
    biases = np.stack([table[axis] for axis in problem.domain.names], axis=-1)
    for number in (0, len(biases) // 3):
        episodes = problem.reference(biases[number], rl_landscapes.settings(False)["episodes"][name])
        assert np.mean([e.score for e in episodes]) == pytest.approx(table["value"][number], abs=0.02)


@pytest.mark.parametrize("name", MAPPED)
def test_a_landscape_is_worth_exploring(name, problems):
    table, problem = problems[name].landscape(), problems[name]
    biases = np.stack([table[axis] for axis in problem.domain.names], axis=-1)
    start = table["value"][np.argmin(np.abs(biases).sum(axis=1))]
    assert start > 0.0 and table["value"].min() < 0.0 and table["value"].max() > start + 3.0 * problem.noise


def test_cart_pole_values_and_failures(problems):
    problem = problems["cart_pole"]
    problem._values.clear()
    assert problem.is_unsafe([1.5]) and problem.failures([1.5]) == 1.0
    with pytest.raises(InvalidValueError, match="outside its bounds"):
        problem.measure([9.0], np.random.default_rng(0))


@pytest.mark.parametrize("seed", [-1, None, True, 1.0])
def test_a_wrong_seed_is_refused_and_breaks_nothing(seed):
    problem = RLProblem("cart_pole")
    with pytest.raises(InvalidValueError, match="seed must be an integer >= 0"):
        problem.episode([0.0], seed)
    with pytest.raises(InvalidValueError, match="seed must be an integer >= 0"):
        problem.plant(seed)
    assert problem.episode([0.0], np.int64(0)) == problem.episode([0.0], 0)


def test_too_few_episodes_are_refused(problems):
    problem = problems["cart_pole"]
    for ask in (problem.is_unsafe, problem.value, problem.reference):
        for episodes in (0, -1, True, 2.0):
            with pytest.raises(InvalidValueError, match=f"episodes must be an integer >= 1, got {episodes}"):
                ask([0.0], episodes)
    with pytest.raises(InvalidValueError, match="experiments must be an integer >= 2, got 1"):
        problem.measured_noise(experiments=1)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MAPPED])
def test_landscapes_exist_for_few_dimensions(name, problems):
    with pytest.raises(InvalidValueError, match=rf"{name}.* has \d dimensions: landscapes exist for one and two dimensions"):
        problems[name].landscape()


def test_the_package_imports_neither_gymnasium_nor_torch():
    code = "import sys, safebo; print([m for m in ('gymnasium', 'torch', 'mujoco', 'stable_baselines3') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# -- commands ------------------------------------------------------------------------------------------------------------------


def test_training_continues_and_exports(tmp_path, capsys, small_buffer):
    train_policy.main("cart_pole", tmp_path, quick=True)

    def steps():
        return [int(row["steps"]) for row in curve(tmp_path)]

    assert steps() == [150, 300]
    train_policy.main("cart_pole", tmp_path, steps=350, quick=True)
    assert steps() == [150, 300, 350]
    assert Actor.load(tmp_path / "cart_pole.safetensors").observations == 4
    assert json.loads((tmp_path / "actors" / "350.json").read_text())["curve"][-1]["steps"] == 350
    assert "350 of 350 steps" in capsys.readouterr().out


def curve(folder):
    return list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def killed_after(number, monkeypatch):
    """Let so many steps to the disk happen: each file synced, renamed, removed or written in another way."""
    left = iter(range(number))

    def dying(do):
        def step(*arguments, **options):
            if next(left, None) is None:
                raise Killed
            return do(*arguments, **options)

        return step

    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    monkeypatch.setattr(os, "replace", dying(os.replace))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
    monkeypatch.setattr(Actor, "save", dying(Actor.save))
    monkeypatch.setattr(train_policy, "write_csv", dying(train_policy.write_csv))


@pytest.fixture(scope="module")
def small_buffer():
    """Files of kilobytes."""
    whole = train_policy._arguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_policy, "_arguments", lambda row, quick: {**whole(row, quick), "buffer_size": 1000})
        yield


def train_until_killed(folder, number):
    """Whether so many steps to the disk were not enough for two evaluations."""
    with pytest.MonkeyPatch.context() as patch:
        killed_after(number, patch)
        try:
            train_policy.main("cart_pole", folder, steps=20, quick=True)
        except Killed:
            return True
    return False


def evaluations(folder):
    """Number of evaluations in the state, which names the trainer and the replay buffer of the last one."""
    if not (folder / "state.json").exists():
        assert not (folder / "curve.csv").exists()
        return 0
    state = json.loads((folder / "state.json").read_text())
    number = len(state["curve"])
    assert list(state["files"]) == [f"checkpoint-{10 * number}.zip", f"replay-{10 * number}.pkl"]
    for name, digest in state["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    return number


def test_training_continues_after_a_kill_at_any_moment(tmp_path, small_buffer):
    out, number, seen, between = tmp_path / "0", 0, [], 0
    while train_until_killed(out, number):
        seen.append(evaluations(out))
        between += seen[-1] == 1 and (out / "checkpoint-20.zip").exists()
        train_policy.main("cart_pole", out, steps=20, quick=True)
        rows = curve(out)
        assert [row["steps"] for row in rows] == ["10", "20"]
        best = max(rows, key=lambda row: (float(row["mean"]), int(row["steps"])))["steps"]
        for suffix in ("safetensors", "json"):
            assert (out / f"cart_pole.{suffix}").read_bytes() == (out / "actors" / f"{best}.{suffix}").read_bytes()
        names = {
            "actors",
            "cart_pole.safetensors",
            "cart_pole.json",
            "curve.csv",
            "state.json",
            "checkpoint-20.zip",
            "replay-20.pkl",
        }
        assert {path.name for path in out.iterdir()} == names and evaluations(out) == 2
        number += 1
        out = tmp_path / str(number)
    assert set(seen) == {0, 1, 2} and between > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_buffer):
    out = tmp_path_factory.mktemp("trained")
    train_policy.main("cart_pole", out, steps=4, seed=3, quick=True)
    return out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cart_pole", "--quick", "--seed", "1"], "seed 3, wanted 1"),
        (["swimmer", "--quick", "--seed", "3"], "environment 'cart_pole', wanted 'swimmer'"),
        (["cart_pole", "--seed", "3"], "learning_starts 100, wanted 1000"),
    ],
)
def test_other_settings_than_those_of_the_folder_are_refused(arguments, message, trained, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    err = refused(["train-policy", *arguments, "--out", str(trained)], monkeypatch, capsys)
    assert str(trained) in err and message in err
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.mark.parametrize("name", ["checkpoint-4.zip", "replay-4.pkl", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "foreign", "missing"])
def test_damaged_files_are_one_line(name, damage, trained, tmp_path, monkeypatch, capsys):
    out = tmp_path / "copy"
    shutil.copytree(trained, out)
    content = (out / name).read_bytes()
    if damage == "missing":
        (out / name).unlink()
    else:
        (out / name).write_bytes(content[: len(content) // 2] if damage == "truncated" else b'{"a": 1}')
    err = refused(["train-policy", "cart_pole", "--quick", "--seed", "3", "--out", str(out)], monkeypatch, capsys)
    assert (name if (name, damage) != ("state.json", "missing") else "no state.json") in err


def test_a_trainer_that_cannot_be_loaded_is_one_line(trained, tmp_path, monkeypatch, capsys):
    out = tmp_path / "copy"
    shutil.copytree(trained, out)
    (out / "checkpoint-4.zip").write_bytes(b"of another version")
    state = json.loads((out / "state.json").read_text())
    state["files"]["checkpoint-4.zip"] = hashlib.sha256(b"of another version").hexdigest()
    (out / "state.json").write_text(json.dumps(state))
    err = refused(["train-policy", "cart_pole", "--quick", "--seed", "3", "--out", str(out)], monkeypatch, capsys)
    assert "checkpoint-4.zip cannot be continued" in err


def test_a_single_step_ends(tmp_path, small_buffer):
    train_policy.main("cart_pole", tmp_path, steps=1, quick=True)
    assert [row["steps"] for row in curve(tmp_path)] == ["1"]


def test_a_wrong_seed_of_a_training_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="seed must be an integer >= 0"):
        train_policy.main("cart_pole", tmp_path, seed=-1, quick=True)


@pytest.mark.parametrize("name", ["cart_pole", "mountain_car"])
def test_an_animation_finds_a_backend(name, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    problem = RLProblem(name)
    try:
        images = pictures.frames(problem, problem.initial, 0, 30, 3)
    except SafeboError as error:
        pytest.skip(str(error))
    assert images.shape[0] == 3 and images.shape[3] == 3 and (images[0] != images[2]).any() and np.ptp(images) > 50
    pictures.animation(problem, problem.initial, tmp_path / "new" / "a.gif", number=3)
    with Image.open(tmp_path / "new" / "a.gif") as file:
        assert file.n_frames > 1 and file.width == 486  # equal pictures are one


def test_an_animation_without_a_backend_says_what_to_set(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    tried = []
    monkeypatch.setattr(rendering, "_attempt", lambda module, order, backend: tried.append(backend) or "broken")
    command = ["animate-policy", "cart_pole", str(tmp_path / "a.gif"), "--bias", "0"]
    err = refused(command, monkeypatch, capsys)
    assert tried == ["egl", "osmesa", "glfw"] and "egl: broken; osmesa: broken; glfw: broken): set MUJOCO_GL" in err
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert "here (osmesa: broken)" in refused(command, monkeypatch, capsys)


def test_a_wrong_backend_is_one_line(tmp_path):
    """In a process of its own: MuJoCo reads the variable once."""
    command = [sys.executable, "-m", "safebo.cli", "animate-policy", "cart_pole", str(tmp_path / "a.gif"), "--bias", "0"]
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        command, env={**os.environ, "MUJOCO_GL": "foo", "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 2 and "MUJOCO_GL='foo'" in done.stderr and done.stderr.count("\n") == 1


def test_the_suffix_of_an_animation_is_checked_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "frames", None)  # nothing is drawn
    err = refused(["animate-policy", "cart_pole", str(tmp_path / "a.txt"), "--bias", "0"], monkeypatch, capsys)
    assert ".gif, .png or .webp" in err and not list(tmp_path.iterdir())


def refused(command, monkeypatch, capsys):
    """The one line of a command that ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["safebo", *command])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    err = capsys.readouterr().err
    assert ending.value.code == 2 and err.startswith("safebo: ") and err.count("\n") == 1
    return err


def test_an_environment_without_the_study_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["safebo", "reproduce", "cubes", "--env", "ant", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--env ant" in capsys.readouterr().err

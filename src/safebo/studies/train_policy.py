"""`safebo train-policy ENV`: a soft actor-critic policy in the nominal environment of a benchmark. An interrupted run continues.

    out/ENV.safetensors, ENV.json    the best deterministic actor so far, with settings and training curve
    out/actors/STEPS.safetensors     every evaluated actor
    out/curve.csv                    steps, mean and smallest return of the deterministic actor, seconds
    out/state.json and two files     the trainer's own state, to continue from; not needed by anything else

The actor is evaluated every few thousand steps, in the nominal environment, over the same initial states, and the best is kept.
A folder belongs to one training: another seed or environment is refused.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from safebo.exceptions import MissingExtraError
from safebo.extras import how_to_install
from safebo.problems.rl.actor import Actor
from safebo.problems.rl.environments import Environment, environment, make
from safebo.rkhs import checked_seed
from safebo.studies.common import Row, provenance, write_csv, write_durably
from safebo.studies.policy_state import CURVE, State

EVALUATIONS = 5  # episodes per evaluation
QUICK_STEPS = 300
EVALUATION_SEED = 10_000


def main(env: str, out: Path, *, steps: int | None = None, seed: int = 0, quick: bool = False) -> None:
    """Train until `steps` environment steps in total are done; the default is the table's number."""
    row = environment(env)
    total = steps or (QUICK_STEPS if quick else row.training.steps)
    every = max(total // 2, 1) if quick else row.training.every
    state = State.open(out, _settings(row, checked_seed(seed), quick))
    trainer = _trainer()
    nominal, judge = make(env, changed=False), make(env, changed=False)
    if state.files:
        model = state.load(trainer, nominal)
        state.tidy()
        publish(env, state)
    else:
        model = trainer("MlpPolicy", nominal, seed=seed, device="cpu", **_arguments(row, quick))
    started = time.perf_counter() - (state.curve[-1]["seconds"] if state.curve else 0.0)
    while model.num_timesteps < total:
        model.learn(min(every, total - model.num_timesteps), reset_num_timesteps=False)
        actor = export(model)
        returns = evaluate(actor, judge)
        point = _point(model.num_timesteps, returns, time.perf_counter() - started)
        actor.save(out / "actors" / f"{model.num_timesteps}.safetensors", _about(row, seed, total, [*state.curve, point]))
        state.save(model, point)
        publish(env, state)
        print(
            f"{env}: {model.num_timesteps} of {total} steps, return {returns.mean():.1f}, smallest {returns.min():.1f}",
            flush=True,
        )
    print(f"{env}: the best actor is in {out / f'{env}.safetensors'}")


def publish(env: str, state: State) -> None:
    """Curve and best actor so far, where others look for them; the last of equals."""
    write_csv(state.folder / "curve.csv", {name: [row[name] for row in state.curve] for name in CURVE})
    best = max(state.curve, key=lambda row: (row["mean"], row["steps"]))
    for suffix in (".safetensors", ".json"):
        _copy(state.folder / "actors" / f"{best['steps']}{suffix}", state.folder / f"{env}{suffix}")


def _copy(source: Path, target: Path) -> None:
    """A copy, where the source has not been removed."""
    if source.exists():
        write_durably(target, lambda file: file.write(source.read_bytes()))


def export(model: Any) -> Actor:
    """The deterministic actor of a trained model."""
    state = {name: value.detach().numpy().astype(np.float32) for name, value in model.policy.actor.state_dict().items()}
    hidden = sorted({int(name.split(".")[1]) for name in state if name.startswith("latent_pi.")})
    head = "mu.0" if "mu.0.weight" in state else "mu"
    names = [f"latent_pi.{i}" for i in hidden] + [head]
    return Actor(
        weights=tuple(state[f"{name}.weight"] for name in names),
        biases=tuple(state[f"{name}.bias"] for name in names),
        low=np.asarray(model.action_space.low, np.float32),
        high=np.asarray(model.action_space.high, np.float32),
        clip=float(model.policy.actor.clip_mean) if head == "mu.0" else float("inf"),
    )


def evaluate(actor: Actor, env: Any, episodes: int = EVALUATIONS) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns of whole episodes from the evaluation's initial states."""
    returns = np.zeros(episodes)
    for episode in range(episodes):
        observation, _ = env.reset(seed=EVALUATION_SEED + episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(actor(observation))
            returns[episode] += reward
            over = terminated or truncated
    return returns


def _arguments(row: Environment, quick: bool) -> dict[str, Any]:
    """Arguments of the trainer; the fused optimizer does the same arithmetic with less overhead for small networks."""
    settings = dict(row.training.settings)
    policy: dict[str, Any] = {"net_arch": list(row.training.layers), "optimizer_kwargs": {"fused": True}}
    policy |= settings.pop("policy", {})
    if quick:
        settings |= {"learning_starts": QUICK_STEPS // 3}
    return {"policy_kwargs": policy, **settings}


def _settings(row: Environment, seed: int, quick: bool) -> dict[str, Any]:
    """What a training cannot be continued without."""
    return {"environment": row.name, "seed": seed, "id": row.id, "options": dict(row.options), **_arguments(row, quick)}


def _point(steps: int, returns: np.ndarray[Any, np.dtype[np.float64]], seconds: float) -> Row:
    """A row of the curve."""
    values = (round(float(value), digits) for value, digits in ((returns.mean(), 3), (returns.min(), 3), (seconds, 1)))
    return dict(zip(CURVE, (steps, *values), strict=True))


def _about(row: Environment, seed: int, total: int, curve: list[Row]) -> dict[str, Any]:
    """What stands beside the weights."""
    import gymnasium
    import stable_baselines3

    training = {"planned_steps": total, "layers": list(row.training.layers), **row.training.settings}
    versions = {"gymnasium": gymnasium.__version__, "stable_baselines3": stable_baselines3.__version__}
    return {
        "environment": {"id": row.id, **row.options},
        "algorithm": "soft actor-critic",
        "seed": seed,
        "training": training,
        "curve": [{name: float(r[name]) for name in CURVE} for r in curve],
        "provenance": provenance(**versions),
    }


def _trainer() -> Any:
    """The trainer's class, or an error that says how to install it."""
    try:
        import stable_baselines3
        import torch
    except ImportError as error:
        raise MissingExtraError(f"Training a policy needs stable-baselines3 ({error}): {how_to_install('rl')}.") from error
    torch.set_num_threads(1)  # networks of a hundred units: a second thread costs more than it gives
    return stable_baselines3.SAC

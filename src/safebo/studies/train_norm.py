"""`safebo train-norm`: data, training and validation of the learned norm estimator. Every stage continues where it stopped.

    data      out/data/*.npz, see `norm_data`
    train     out/lstm.safetensors, the weights; out/checkpoint.safetensors while it runs
    report    out/report.json, errors.csv, report.png, on the functions that were not trained on; with the seconds of all stages
    unseen    out/unseen.json: a second network, trained on the paper's functions alone, on kernels and dimensions it never saw

Two differences from the paper. Its network predicts the norm with a squared error; this one predicts quantiles of
log(norm / ||mu_t||) with the pinball loss, so one network gives a best guess and careful ones. And it is trained on every prefix
of a history at once: both sequences are causal, so one pass over a history of t samples gives t predictions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError, MissingExtraError
from safebo.extras import how_to_install
from safebo.norms.lstm import HIDDEN, LAYERS, LEVELS, sequences, shapes
from safebo.studies import norm_data, norm_report
from safebo.studies.common import progress, provenance, write_json

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
Mask = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]

STAGES = ("data", "train", "report", "unseen", "all")
EPOCHS, QUICK_EPOCHS = 100, 8
BATCH = 512  # histories
RATE = 1e-2  # of Adam, as in the paper; here it falls to a hundredth along a cosine
EVERY = 5  # epochs between checkpoints
HELD_OUT = 0.2  # of the functions
BLUR = 0.15  # standard deviation added to the context while training: size and noise would tell single functions apart


def main(out: Path, *, quick: bool = False, jobs: int = 0, seed: int = 0, stage: str = "all", share: float = 1.0) -> None:
    """Run one stage or all of them, with this share of the functions; what exists already is not made again."""
    if stage not in STAGES:
        raise InvalidValueError(f"The stage must be one of {STAGES}, got {stage!r}.")
    if not 0.0 < share <= 1.0:
        raise InvalidValueError(f"The share of the functions must be above 0 and at most 1, got {share}.")
    if quick and share != 1.0:
        raise InvalidValueError(f"A quick study has its own few functions: give --quick or --share {share}, not both.")
    if stage != "data":
        _torch().set_num_threads(1)  # matrices of 20 columns: a second thread was measured to cost more than it gives
    families = norm_data.quick_families() if quick else norm_data.part_of(norm_data.FAMILIES, share)
    if stage in ("data", "all"):
        with _timed(out, "data"):
            made = norm_data.generate(out / "data", families, seed=seed, jobs=jobs)
        print(f"data: {made} shards made, the others were there")
        if stage == "data":
            return
    data = assemble(norm_data.load(out / "data", families, seed), seed)
    epochs = QUICK_EPOCHS if quick else EPOCHS
    settings = {"quick": quick, "seed": seed, "epochs": epochs, "batch": BATCH, "rate": RATE, "levels": LEVELS, "share": share}
    if stage in ("train", "all"):
        with _timed(out, "train"):
            model, losses = train(data, out, epochs=epochs, seed=seed)
        write_weights(out / "lstm.safetensors", model, provenance(**settings), losses)
        print(f"weights: {out / 'lstm.safetensors'}")
    if stage in ("report", "all"):
        found = predict(out / "lstm.safetensors", data)
        origin = provenance(**settings) | {"seconds": _seconds(out)}
        norm_report.write(out, data, found, _losses(out / "lstm.safetensors"), origin)
        print(f"report: {out / 'report.json'}, errors.csv and report.png beside it")
    if stage in ("unseen", "all"):
        origin = provenance(**settings)
        print("a second network, on the first family alone:")
        rows = unseen(data, out / "unseen", epochs=epochs, seed=seed, origin=origin)
        write_json(out / "unseen.json", {"provenance": origin, "explanation": norm_report.EXPLANATION, "errors": rows})
        print(f"unseen: {out / 'unseen.json'}")


def unseen(data: Histories, out: Path, *, epochs: int, seed: int, origin: dict[str, Any]) -> list[dict[str, Any]]:
    """Errors by family of a network that knows the first family alone: on its held-out functions, and on all of the others."""
    known = data.family == data.family[0]
    model, losses = train(data.part(known), out, epochs=epochs, seed=seed)
    write_weights(out / "lstm.safetensors", model, origin, losses)
    tested = replace(data, held_out=data.held_out | ~known)
    families = set(data.family.tolist())
    return [row for row in norm_report.table(tested, predict(out / "lstm.safetensors", tested)) if row["what"] in families]


@contextmanager
def _timed(out: Path, stage: str) -> Iterator[None]:
    """Add the seconds of a stage to those of earlier calls, also if it is interrupted."""
    start = time.perf_counter()
    try:
        yield
    finally:
        found = _seconds(out)
        write_json(out / "seconds.json", found | {stage: round(found.get(stage, 0.0) + time.perf_counter() - start, 3)})


def _seconds(out: Path) -> dict[str, float]:
    path = out / "seconds.json"
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return found


# -- arrays --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Histories:
    """All histories, padded to the longest, T steps."""

    growth: SingleArray  # (S, T)
    density: SingleArray  # (S, T)
    context: SingleArray  # (S, 4)
    target: SingleArray  # (S, T), log(label / ||mu_s||)
    counts: Mask  # (S, T): the sub-domain existed with these samples
    length: NDArray[np.int64]  # (S,)
    family: NDArray[np.str_]  # (S,)
    function: NDArray[np.int64]  # (S,), number within its family
    held_out: Mask  # (S,): its function is not trained on

    def part(self, where: Mask) -> Histories:
        """The histories where the mask is true."""
        return Histories(*(getattr(self, name)[where] for name in self.__dataclass_fields__))


def assemble(shards: dict[str, dict[str, NDArray[Any]]], seed: int) -> Histories:
    """Padded arrays of all families; a fifth of each family's functions is held out, with all of their histories."""
    longest = max(int(part["length"].max()) for part in shards.values())
    parts = []
    for number, (name, part) in enumerate(shards.items()):
        size, length = len(part["label"]), part["length"].astype(np.int64)
        step = np.arange(longest)
        inside = step < length[:, None]
        norms, variances = np.zeros((size, longest)), np.ones((size, longest))
        norms[inside], variances[inside] = part["norms"], part["variances"]
        growth, density = sequences(norms, variances)
        counts = inside & (step >= part["created"][:, None] - 1) & (norms > 0.0)
        target = np.log(part["label"][:, None] / np.where(counts, norms, 1.0))
        growth[~inside] = 0.0
        functions = np.unique(part["function"])
        chosen = np.random.default_rng([seed, 1, number]).permutation(functions)[: max(1, round(HELD_OUT * len(functions)))]
        parts.append(
            (
                *(a.astype(np.float32) for a in (growth, density, part["context"], np.where(counts, target, 0.0))),
                counts,
                length,
                np.full(size, name),
                part["function"].astype(np.int64),
                np.isin(part["function"], chosen),
            )
        )
    return Histories(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


# -- training ------------------------------------------------------------------------------------------------------------


def _torch() -> Any:
    """The torch module, or an error that says how to install it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"Training the norm estimator needs torch ({error}): {how_to_install('torch')}.") from error
    return torch


def network(levels: int = len(LEVELS)) -> Any:
    """The network as a torch module; names and shapes of its parameters are those of the weights file."""
    torch = _torch()

    class Branches(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.growth = torch.nn.LSTM(1, HIDDEN, LAYERS, batch_first=True)
            self.density = torch.nn.LSTM(1, HIDDEN, LAYERS, batch_first=True)
            self.start = torch.nn.Linear(4, 2 * LAYERS * HIDDEN)
            self.head = torch.nn.Linear(2 * HIDDEN, levels)

        def forward(self, growth: Any, density: Any, context: Any) -> Any:
            """ReLU(z) after every step, (S, T, levels); the context is scaled to [-1, 1]."""
            cells = self.start(context).view(-1, 2, LAYERS, HIDDEN)
            states = []
            for number, (branch, x) in enumerate(((self.growth, growth), (self.density, density))):
                cell = cells[:, number].transpose(0, 1).contiguous()
                states.append(branch(x[:, :, None], (torch.tanh(cell), cell))[0])
            return torch.relu(self.head(torch.cat(states, dim=-1)))

    return Branches()


class Model:
    """A network with the range of contexts that it knows."""

    def __init__(self, module: Any, low: FloatArray, high: FloatArray) -> None:
        self.module, self.low, self.high = module, low, high

    @classmethod
    def fresh(cls, data: Histories, seed: int) -> Model:
        """Random weights; the head starts at the quantiles of the targets, so that no ReLU starts dead."""
        torch = _torch()
        torch.manual_seed(seed)
        module = network()
        low = data.context.min(axis=0).astype(np.float64)
        high = np.maximum(data.context.max(axis=0), low + 1e-3)  # a family may have only one value of something
        with torch.no_grad():
            module.head.bias.copy_(torch.as_tensor(np.maximum(np.quantile(data.target[data.counts], LEVELS), 0.02)))
        return cls(module, low, high)

    def __call__(self, data: Histories, rows: NDArray[np.intp], steps: int, rng: np.random.Generator | None = None) -> Any:
        """Predictions (rows, steps, levels) as a torch tensor; with a generator the context is blurred."""
        torch = _torch()
        context = 2.0 * (np.clip(data.context[rows], self.low, self.high) - self.low) / (self.high - self.low) - 1.0
        if rng is not None:
            context = context + BLUR * rng.standard_normal(context.shape)
        inputs = (data.growth[rows, :steps], data.density[rows, :steps], context.astype(np.float32))
        return self.module(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs))

    def load(self, arrays: Arrays) -> None:
        """Take the weights over."""
        torch = _torch()
        self.module.load_state_dict({name: torch.from_numpy(arrays[name]) for name in self.module.state_dict()})

    def arrays(self) -> Arrays:
        """What a weights file holds."""
        found = {name: value.detach().numpy().copy() for name, value in self.module.state_dict().items()}
        return {
            **found,
            "levels": np.array(LEVELS, np.float32),
            "context.low": self.low.astype(np.float32),
            "context.high": self.high.astype(np.float32),
        }


def batches(length: NDArray[np.int64], rng: np.random.Generator | None) -> list[NDArray[np.intp]]:
    """Rows in batches of about equal length; with a generator the batches and the rows of one length are in random order."""
    jitter = np.zeros(len(length)) if rng is None else rng.uniform(0.0, 3.0, len(length))
    order = np.argsort(length + jitter, kind="stable")
    found = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    return found if rng is None else [found[i] for i in rng.permutation(len(found))]


def loss_of(model: Model, data: Histories, rows: NDArray[np.intp], rng: np.random.Generator | None = None) -> tuple[Any, int]:
    """Sum of the pinball losses of a batch over all levels, and the number of samples in it."""
    torch = _torch()
    steps = int(data.length[rows].max())
    level = torch.tensor(LEVELS)
    error = torch.from_numpy(data.target[rows, :steps])[:, :, None] - model(data, rows, steps, rng)
    loss = torch.maximum(level * error, (level - 1.0) * error)
    counts = torch.from_numpy(data.counts[rows, :steps])
    return loss[counts].sum(), int(counts.sum())


def train(data: Histories, out: Path, *, epochs: int, seed: int) -> tuple[Model, list[list[float]]]:
    """Adam over all epochs, from the last checkpoint if there is one; the weights of the epoch with the lowest validation loss.

    Returns (epoch, training loss, validation loss) of all epochs as well.
    """
    torch = _torch()
    fit, rest = data.part(~data.held_out), data.part(data.held_out)
    model = Model.fresh(fit, seed)
    optimizer = torch.optim.Adam(model.module.parameters(), lr=RATE)
    schedule = {"epochs": epochs, "seed": seed, "histories": len(fit.length), "steps": int(fit.length.sum())}
    checkpoint = out / "checkpoint.safetensors"
    losses, best = _restore(checkpoint, model, optimizer, schedule)
    with progress(epochs - len(losses), "epochs") as advance:
        for epoch in range(len(losses), epochs):
            optimizer.param_groups[0]["lr"] = RATE * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs)))
            total, samples = 0.0, 0
            rng = np.random.default_rng([seed, 2, epoch])
            for rows in batches(fit.length, rng):
                loss, count = loss_of(model, fit, rows, rng)
                optimizer.zero_grad()
                (loss / max(count, 1)).backward()
                torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
                optimizer.step()
                total, samples = total + float(loss.detach()), samples + count
            losses.append([epoch + 1, total / samples, validation_loss(model, rest)])
            if losses[-1][2] <= min(entry[2] for entry in losses):
                best = model.arrays()
            if (epoch + 1) % EVERY == 0 or epoch + 1 == epochs:
                _save(checkpoint, model, best, optimizer, schedule, losses)
                print(f"epoch {epoch + 1}: training {losses[-1][1]:.5f}, validation {losses[-1][2]:.5f}", flush=True)
            advance(None)
    model.load(best)
    return model, losses


def validation_loss(model: Model, data: Histories) -> float:
    """Mean pinball loss."""
    with _torch().no_grad():
        parts = [loss_of(model, data, rows) for rows in batches(data.length, None)]
    return sum(float(loss) for loss, _ in parts) / max(sum(count for _, count in parts), 1)


def predict(weights: Path, data: Histories) -> FloatArray:
    """log(estimate / ||mu_s||) of every level for all histories, (S, T, levels), as `LSTMNorm` gives it."""
    torch = _torch()
    arrays = _read(weights)[0]
    model = Model(network(), arrays["context.low"].astype(np.float64), arrays["context.high"].astype(np.float64))
    model.load(arrays)
    found = np.zeros((*data.growth.shape, len(LEVELS)))
    with torch.no_grad():
        for rows in batches(data.length, None):
            steps = int(data.length[rows].max())
            found[rows, :steps] = model(data, rows, steps).numpy()
    return np.asarray(np.maximum.accumulate(found, axis=-1))


# -- files ---------------------------------------------------------------------------------------------------------------


def write_weights(path: Path, model: Model, origin: dict[str, Any], losses: list[list[float]]) -> None:
    """The weights with their provenance."""
    arrays = model.arrays()
    assert {name: array.shape for name, array in arrays.items()} == shapes(len(LEVELS))
    _write(path, arrays, {"origin": origin, "losses": losses})


def _losses(path: Path) -> list[list[float]]:
    found: list[list[float]] = _read(path)[1]["losses"]
    return found


def _save(path: Path, model: Model, best: Arrays, optimizer: Any, schedule: dict[str, Any], losses: list[list[float]]) -> None:
    """The latest weights, the best ones and the state of Adam."""
    arrays = {**model.arrays(), **{f"best.{name}": array for name, array in best.items()}}
    for number, state in optimizer.state_dict()["state"].items():
        arrays.update({f"adam.{number}.{key}": np.asarray(value) for key, value in state.items()})
    _write(path, arrays, {"schedule": schedule, "losses": losses})


def _restore(path: Path, model: Model, optimizer: Any, schedule: dict[str, Any]) -> tuple[list[list[float]], Arrays]:
    """Continue from a checkpoint of the same schedule and data; the losses so far and the best weights."""
    if not path.exists():
        return [], model.arrays()
    torch = _torch()
    arrays, content = _read(path)
    if content["schedule"] != schedule:
        return [], model.arrays()
    model.load(arrays)
    state: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        if name.startswith("adam."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = torch.from_numpy(array)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return content["losses"], {name[5:]: array for name, array in arrays.items() if name.startswith("best.")}


def _write(path: Path, arrays: Arrays, content: dict[str, Any]) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    partial.write_bytes(save(dense, {"safebo": json.dumps(content)}))  # save_file would let nobody else read it
    partial.replace(path)


def _read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise InvalidValueError(f"There is no {path}: run the stage 'train' first.")
    try:
        with safe_open(path, "numpy") as file:
            content: dict[str, Any] = json.loads(file.metadata()["safebo"])
            return {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"{path} cannot be read ({error}): remove it, and train again.") from None

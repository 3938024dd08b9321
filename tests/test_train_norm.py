"""Training of the learned norm estimator on very little: data, split, interruption, files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from safebo.exceptions import InvalidValueError, MissingExtraError
from safebo.kernels import Matern
from safebo.norms import LSTMNorm
from safebo.norms.lstm import LEVELS, SHIPPED, load_network
from safebo.norms.scenario import make_query
from safebo.rkhs import random_function
from safebo.studies import norm_data, norm_report, train_norm

BY_NAME = {family.name: family for family in norm_data.FAMILIES}
TINY = (
    replace(BY_NAME["matern32-1d"], functions=4, experiments=3),
    replace(BY_NAME["matern32-1d-uniform"], functions=4, experiments=6),
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(norm_data, "PER_SHARD", 2)
    monkeypatch.setattr(norm_data, "CUBES", 9)
    monkeypatch.setattr(norm_data, "quick_families", lambda: TINY)
    monkeypatch.setattr(train_norm, "QUICK_EPOCHS", 6)
    monkeypatch.setattr(train_norm, "EVERY", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads wait for each other on a busy machine
    yield
    torch.set_num_threads(threads)


GENERATE = """
import sys, time
from pathlib import Path
from safebo.studies import norm_data
from tests.test_train_norm import TINY

norm_data.PER_SHARD, norm_data.CUBES, made = 2, 9, norm_data.make_shard

def make_and_rest(shard):
    path = made(shard)
    time.sleep(float(sys.argv[2]))
    return path

norm_data.make_shard = make_and_rest
print(norm_data.generate(Path(sys.argv[1]), TINY, seed=0, jobs=1))
"""


def generation(folder, rest=0.0):
    """A process that makes four shards and rests after each; one thread, as threads wait for each other on a busy machine."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-c", GENERATE, str(folder), str(rest)]
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[1], env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four shards, made once."""
    folder = tmp_path_factory.mktemp("train-norm")
    assert generation(folder).communicate()[0].strip() == "4"
    return folder


def contents(folder):
    return {path.name: {k: v.copy() for k, v in np.load(path).items()} for path in sorted(folder.glob("*.npz"))}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[n][k], b[n][k]) for n in a for k in a[n])


# -- data ---------------------------------------------------------------------------------------------------------------


def test_a_killed_generation_continues_with_the_missing_shards(shards, tmp_path, tiny):
    process = generation(tmp_path, rest=0.5)
    while not list(tmp_path.glob("*.npz")) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert 0 < len(before) < 4
    assert generation(tmp_path).communicate()[0].strip() == str(4 - len(before))
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before
    assert same(contents(tmp_path), contents(shards))


def test_histories_end_at_the_data_and_labels_are_local_norms(shards, tiny):
    part = norm_data.load(shards, TINY, 0)["matern32-1d"]
    assert part["length"].sum() == len(part["norms"]) == len(part["variances"])
    assert ((part["created"] >= 1) & (part["created"] <= part["length"])).all()
    ends = np.cumsum(part["length"]) - 1
    assert np.quantile(part["label"] / part["norms"][ends], 0.05) > 0.9  # the mean is smaller than the function, up to noise
    for f in np.unique(part["function"]):
        mine = part["label"][part["function"] == f]
        assert mine.max() == mine[0]  # the global domain comes first and has the largest norm
    np.testing.assert_allclose(part["context"][:, 1:3], [[1.0, 1.0 / 3.0]] * len(ends), rtol=1e-6)


@pytest.mark.parametrize("name", ["matern52-1d", "rbf-1d", "matern32-2d"])
def test_other_families(name):
    family = replace(BY_NAME[name], experiments=2)
    found = norm_data.histories(family, 0, np.random.default_rng(5))
    assert len(found) >= 4 and all(np.isfinite(r["label"]) and len(r["norms"]) >= r["created"] for r in found)


def test_the_fast_label_is_accurate():
    f = random_function(Matern(1.5, 0.1), 1, 10.0, 3, 800)
    for lower, upper in ((0.0, 0.05), (0.3, 0.4), (0.5, 0.8)):
        cube = norm_data.Cube((lower,), (upper,))
        assert norm_data.local_norm(f, cube) == pytest.approx(f.local_norm(cube, 300), rel=5e-3)
    assert norm_data.local_norm(f, norm_data.Cube.whole(1)) == pytest.approx(10.0)


def test_a_sub_domain_counts_from_the_sample_at_its_centre():
    x, locality = np.array([[0.5], [0.52], [0.9], [0.55]]), norm_data.LocalCubes(1, 0.2)
    cubes = locality.cubes(x)
    rows = [np.flatnonzero(c.contains(x)) for c in cubes]
    assert [norm_data._created(c, locality, x, r) for c, r in zip(cubes, rows, strict=True)] == [1, 1, 2, 1, 3]


# -- split and arrays ---------------------------------------------------------------------------------------------------


def test_the_split_is_by_function(shards, tiny):
    data = train_norm.assemble(norm_data.load(shards, TINY, 0), seed=0)
    for family in TINY:
        mine = data.family == family.name
        held, kept = (set(data.function[mine & where].tolist()) for where in (data.held_out, ~data.held_out))
        assert not held & kept and len(held) == 1 and len(held | kept) == 4


def test_the_arrays_are_the_sequences(shards, tiny):
    parts = norm_data.load(shards, TINY, 0)
    data = train_norm.assemble(parts, seed=0)
    part, start = parts["matern32-1d"], int(parts["matern32-1d"]["length"][0])
    norms, length = part["norms"][start:], int(part["length"][1])  # the second history
    np.testing.assert_allclose(data.density[1, :length], -np.log(part["variances"][start : start + length]), rtol=1e-5)
    np.testing.assert_allclose(data.growth[1, 1:length], 1.0 - norms[: length - 1] / norms[1:length], atol=1e-5)
    s = int(part["created"][1]) - 1
    assert data.counts[1].tolist() == [s <= i < length for i in range(data.counts.shape[1])]
    assert data.target[1, s] == pytest.approx(np.log(part["label"][1] / norms[s]), abs=1e-5)


def test_batches_hold_every_history_once():
    length = np.random.default_rng(0).integers(1, 50, 1200)
    for rng in (None, np.random.default_rng(1)):
        found = train_norm.batches(length, rng)
        assert sorted(np.concatenate(found).tolist()) == list(range(1200))
        assert max(np.ptp(length[rows]) for rows in found) < 35


# -- training -----------------------------------------------------------------------------------------------------------


def test_interrupted_training_continues_to_the_same_weights(shards, tmp_path, tiny, monkeypatch, capsys):
    data = train_norm.assemble(norm_data.load(shards, TINY, 0), seed=0)
    whole, losses = train_norm.train(data, tmp_path / "whole", epochs=6, seed=0)
    assert losses[-1][1] < losses[0][1]
    measured, calls = train_norm.validation_loss, []

    def interrupt(model, rest):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measured(model, rest)

    monkeypatch.setattr(train_norm, "validation_loss", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_norm.train(data, tmp_path / "cut", epochs=6, seed=0)
    monkeypatch.setattr(train_norm, "validation_loss", measured)
    capsys.readouterr()
    resumed, again = train_norm.train(data, tmp_path / "cut", epochs=6, seed=0)
    assert "epoch 2" not in capsys.readouterr().out  # it was at epoch 2
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    for name, array in whole.arrays().items():
        np.testing.assert_allclose(resumed.arrays()[name], array, atol=1e-5)


def test_the_whole_command_on_very_little(shards, tmp_path, tiny, capsys):
    (tmp_path / "data").mkdir()
    for path in shards.glob("*.npz"):
        (tmp_path / "data" / path.name).write_bytes(path.read_bytes())
    train_norm.main(tmp_path, quick=True, jobs=1)
    assert "0 shards made" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["data"]["matern32-1d"]["functions"] == 4 and report["training"]["epochs"] == 6
    assert report["provenance"]["settings"]["quick"] is True
    spent = report["provenance"]["seconds"]
    assert set(spent) == {"data", "train"} and spent["train"] > 0.0
    with pytest.raises(ZeroDivisionError), train_norm._timed(tmp_path, "train"):  # what was spent before an interruption counts
        raise ZeroDivisionError
    assert json.loads((tmp_path / "seconds.json").read_text())["train"] >= spent["train"]
    assert report["errors"][0]["what"] == "all" and report["errors"][0]["samples"] > 10
    assert (tmp_path / "report.png").stat().st_size > 10_000
    elsewhere = json.loads((tmp_path / "unseen.json").read_text())["errors"]
    assert [row["what"] for row in elsewhere] == [family.name for family in TINY]
    # what was trained is what the estimator uses
    data = train_norm.assemble(norm_data.load(tmp_path / "data", TINY, 0), seed=0)
    found = train_norm.predict(tmp_path / "lstm.safetensors", data)
    net = load_network(str(tmp_path / "lstm.safetensors"))
    for row in (0, 7, 20):
        t = int(data.length[row])
        expected = net.log_factors(data.growth[row, :t].astype(float), data.density[row, :t].astype(float), data.context[row])
        np.testing.assert_allclose(found[row, t - 1], expected, atol=1e-5)
    q = make_query([0.2, 0.4], [1.0, 0.5], Matern(), 0.01, 0.0, 1.0, 0)
    assert LSTMNorm(weights=str(tmp_path / "lstm.safetensors")).estimate(q) > q.posterior.mean_norm


def test_the_report_counts_under_estimates(shards, tiny):
    data = train_norm.assemble(norm_data.load(shards, TINY, 0), seed=0)
    exact = np.repeat(data.target[:, :, None].astype(float), len(LEVELS), axis=2)
    rows = {row["what"]: row for row in norm_report.table(data, exact + np.array([0.0, 0.1, -0.1, 0.1]))}
    assert rows["all"]["median"] == rows["all"]["median_size"] == 0.0
    assert (rows["all"]["under_0.75"], rows["all"]["under_0.9"]) == (0.0, 1.0)
    used = data.counts & data.held_out[:, None]
    assert rows["all"]["samples"] == used.sum() == rows["matern32-1d"]["samples"] + rows["matern32-1d-uniform"]["samples"]


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[torch\]'"):
        train_norm.main(tmp_path, quick=True, stage="train")


def test_stages_are_checked(tmp_path):
    with pytest.raises(InvalidValueError, match="'fly'"):
        train_norm.main(tmp_path, stage="fly")
    with pytest.raises(InvalidValueError, match=f"no training data in {tmp_path}.*stage 'data' first"):
        train_norm.main(tmp_path, quick=True, stage="train")


def test_data_of_another_seed_or_size_are_refused(shards, tiny):
    before = {path: path.read_bytes() for path in shards.iterdir()}
    longer = tuple(replace(family, experiments=family.experiments + 1) for family in TINY)
    fewer = tuple(replace(family, functions=1) for family in TINY)
    for families, seed in ((TINY, 5), (longer, 0), (fewer, 0)):
        with pytest.raises(InvalidValueError, match=r"matern32-1d.*\.npz was made with another seed.*choose another --out"):
            norm_data.generate(shards, families, seed=seed, jobs=1)
        with pytest.raises(InvalidValueError, match="another seed"):
            norm_data.load(shards, families, seed)
    assert {path: path.read_bytes() for path in shards.iterdir()} == before


@pytest.mark.parametrize("junk", [b"", b"junk", b"PK\x03\x04 and no more"])
def test_damaged_files_are_named(shards, tmp_path, junk, tiny):
    shutil.copytree(shards, tmp_path / "data")
    broken = sorted((tmp_path / "data").iterdir())[0]
    broken.write_bytes(junk)
    with pytest.raises(InvalidValueError, match=rf"{broken.name} cannot be read .*remove it"):
        norm_data.generate(tmp_path / "data", TINY, seed=0, jobs=1)
    broken = tmp_path / "checkpoint.safetensors"
    broken.write_bytes(junk)
    data = train_norm.assemble(norm_data.load(shards, TINY, 0), seed=0)
    with pytest.raises(InvalidValueError, match=r"checkpoint\.safetensors cannot be read .*remove it"):
        train_norm.train(data, tmp_path, epochs=1, seed=0)
    assert broken.read_bytes() == junk


def test_the_shipped_weights_are_those_of_the_committed_report():
    report = json.loads((Path(__file__).parents[1] / "results" / "train_norm" / "report.json").read_text())
    content = train_norm._read(SHIPPED)[1]
    assert min(entry[2] for entry in content["losses"]) == pytest.approx(report["training"]["validation"], rel=1e-9)
    assert report["data"]["matern32-1d"]["functions"] >= 500


def test_a_network_never_saw_what_it_is_tested_on(shards, tmp_path, monkeypatch, tiny):
    """The second network is fitted to the first family alone, and tested on its held-out functions and on all others."""
    data = train_norm.assemble(norm_data.load(shards, TINY, 0), seed=0)
    seen = []
    fit = train_norm.train

    def watched(part, *given, **more):
        seen.append(part)
        return fit(part, *given, **more)

    monkeypatch.setattr(train_norm, "train", watched)
    rows = train_norm.unseen(data, tmp_path, epochs=2, seed=0, origin={})
    assert set(seen[0].family.tolist()) == {TINY[0].name}
    for row in rows:
        mine = data.family == row["what"]
        counted = data.counts[mine & data.held_out] if row["what"] == TINY[0].name else data.counts[mine]
        assert row["samples"] == counted.sum()


def test_a_share_of_the_functions():
    some = norm_data.part_of(norm_data.FAMILIES, 0.3)
    assert [f.functions for f in some[:4]] == [300, 40, 40, 30] and some[0].name == norm_data.FAMILIES[0].name
    assert norm_data.part_of(norm_data.FAMILIES, 1.0) == norm_data.FAMILIES
    assert all(f.functions == 10 for f in norm_data.part_of(norm_data.FAMILIES, 0.001))
    with pytest.raises(InvalidValueError, match="share"):
        train_norm.main(Path("nowhere"), share=0.0)
    with pytest.raises(InvalidValueError, match=r"--quick or --share 0\.5"):
        train_norm.main(Path("nowhere"), quick=True, share=0.5)

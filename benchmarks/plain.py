"""The same mathematics with plain parts: one scenario at a time with GPyTorch, full matrices, pairwise distances.

This is what a straightforward implementation of the paper looks like, and what the library's speed is compared with.
"""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import torch

from safebo import Matern
from safebo.domain import Cube, Grid, LocalCubes
from safebo.norms.scenario import discards


def norms(x, y, kernel, noise, lower, upper, m, size, generator):
    """Norms of m random functions, a loop over scenarios; x (t, n), y (t,) are tensors."""
    t, n = x.shape
    result = []
    for _ in range(m):
        centres = lower + (upper - lower) * torch.rand((size - t, n), generator=generator, dtype=x.dtype)
        tail = 2.0 * torch.rand(size - t, generator=generator, dtype=x.dtype) - 1.0
        points = torch.cat([x, centres])
        gram = kernel(points).to_dense()
        head = torch.linalg.solve(gram[:t, :t] + noise**2 * torch.eye(t, dtype=x.dtype), y - gram[:t, t:] @ tail)
        alpha = torch.cat([head, tail])
        result.append(torch.sqrt(alpha @ gram @ alpha))
    return torch.sort(torch.stack(result)).values


class ExactGP(gpytorch.models.ExactGP):
    """Zero mean and a given kernel."""

    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def posterior(x, y, kernel, noise, points):
    """Mean and standard deviation at points, by GPyTorch."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-8)).double()
    likelihood.noise = noise**2
    model = ExactGP(x, y, likelihood, kernel).double().eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        prediction = model(points)
        return prediction.mean, prediction.variance.clamp(min=0.0).sqrt()


def interval(posterior, points, alphas, factors):
    """Intersection of mean +- factor sd over all regularisers, (p, G) arrays throughout; one eigendecomposition serves them."""
    cross, spectrum = posterior.kernel(posterior.x, points), posterior.spectrum
    weights = 1.0 / (spectrum.values[None, :] + alphas[:, None])
    rotated = spectrum.vectors.T @ cross
    means, variances = (weights * spectrum.y) @ rotated, posterior.kernel.outputscale - weights @ rotated**2
    half = factors[:, None] * np.sqrt(np.maximum(variances, 0.0))
    return (means - half).max(axis=0), (means + half).min(axis=0)


def metric(a, b, kernel):
    """Kernel metric between all rows of a and b."""
    k0 = kernel(a[:1]).to_dense()[0, 0]
    return torch.sqrt(torch.clamp(2.0 * (k0 - kernel(a, b).to_dense()), min=0.0))


def safe_set(lower, sources, points, norm, h, kernel):
    """Eq. (6) united with the points whose lower bound is above the threshold, pair by pair."""
    safe = lower >= h
    if sources.any():
        reach = lower[sources][:, None] - norm * metric(points[sources], points, kernel)
        safe = safe | (reach >= h).any(dim=0)
    return safe


def expanders(upper, safe, points, norm, h, kernel):
    """Eq. (8), pair by pair."""
    result = torch.zeros_like(safe)
    if safe.any() and not safe.all():
        reach = upper[safe][:, None] - norm * metric(points[safe], points[~safe], kernel)
        result[safe] = (reach >= h).any(dim=1)
    return result


class Algorithm4:
    """Algorithm 4 for one output, every sub-domain recomputed from its samples when a new one falls into it."""

    def __init__(self, threshold, points_per_axis, locality=None, m=1000, noise=0.01, delta=0.01, min_width=0.1, seed=0):
        self.h, self.shape, self.locality = threshold, points_per_axis, locality or LocalCubes(5, 0.1)
        self.m, self.noise, self.delta, self.min_width = m, noise, delta, min_width
        self.kernel = Matern(1.5, 0.1).to_gpytorch()
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.y, self.cubes, self.updates = [], [], {}, 0

    def tell(self, x, y):
        self.x.append(np.asarray(x))
        self.y.append(float(y))

    def ask(self):
        x, y = np.array(self.x), np.array(self.y)
        for cube in self.locality.cubes(x):
            inside = cube.contains(x)
            if cube not in self.cubes or self.cubes[cube]["count"] < inside.sum():
                self.cubes[cube] = self.update(cube, torch.from_numpy(x[inside]), torch.from_numpy(y[inside]))
        best = max((c["lower"][c["safe"]].max().item() for c in self.cubes.values() if c["safe"].any()), default=-math.inf)
        choice, largest = None, -math.inf
        for c in self.cubes.values():
            open_points = (c["expanders"] | (c["safe"] & (c["upper"] >= best))) & (c["upper"] - c["lower"] > self.min_width)
            if open_points.any():
                width = torch.where(open_points, c["half"], -math.inf)
                index = int(width.argmax())
                if width[index] > largest:
                    choice, largest = c["points"][index].numpy(), float(width[index])
        return choice

    def update(self, cube: Cube, x, y):
        self.updates += 1
        old = self.cubes.get(cube)
        points = torch.from_numpy(np.ascontiguousarray(Grid(cube, self.shape).points()))
        mean, sd = posterior(x, y, self.kernel, self.noise, points)
        size = max(round(500 * cube.width), len(y) + 10)
        box = torch.tensor(cube.lower, dtype=x.dtype), torch.tensor(cube.upper, dtype=x.dtype)
        random_norms = norms(x, y, self.kernel, self.noise, *box, self.m, size, self.generator)
        norm = float(random_norms[self.m - 1 - discards(self.m, 0.1, 0.01)])
        norm = norm if old is None else min(norm, old["norm"])
        gram = self.kernel(x).to_dense()
        log_det = torch.logdet(torch.eye(len(y), dtype=x.dtype) + gram / self.noise)
        beta = norm + math.sqrt(self.noise * float(log_det) - 2.0 * self.noise * math.log(self.delta))
        half = beta * sd
        lower, upper = mean - half, mean + half
        if old is not None:
            lower, upper = torch.maximum(lower, old["lower"]), torch.minimum(upper, old["upper"])
        sources = torch.zeros(len(points), dtype=torch.bool) if old is None else old["safe"]
        safe = safe_set(lower, sources, points, norm, self.h, self.kernel)
        return {
            "count": len(y), "norm": norm, "points": points, "half": half, "lower": lower, "upper": upper, "safe": safe,
            "expanders": expanders(upper, safe, points, norm, self.h, self.kernel),
        }  # fmt: skip

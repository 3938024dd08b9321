"""The plan behind acquisition="directed", transcribed point by point: dense matrices, loops, a textbook Dijkstra."""

from __future__ import annotations

import heapq
import math

import numpy as np
from scipy.special import gamma, kv
from scipy.stats import norm

from safebo.kernels import RBF, Matern


def convolved(kernel, dim, r):
    """Correlation of k * k at one scaled distance."""
    if r == 0.0:
        return 1.0
    if isinstance(kernel, RBF):
        return math.exp(-(r**2) / 4.0)
    assert isinstance(kernel, Matern)
    order, z = 2.0 * kernel.nu + dim / 2.0, math.sqrt(2.0 * kernel.nu) * r
    return 2.0 ** (1.0 - order) / gamma(order) * z**order * kv(order, z)


def correlations(kernel, a, b):
    scale = kernel.lengthscales(a.shape[1])
    return np.array([[convolved(kernel, a.shape[1], float(np.linalg.norm((p - q) / scale))) for q in b] for p in a])


def outlook(kernel, x, y, noise, points):
    """(scale, mean, sd): the posterior of a Gaussian process, its variance from five rounds of an iteration."""
    variance, K = kernel.outputscale, correlations(kernel, x, x)
    for _ in range(5):
        A = K + max(noise**2 / variance, 1e-6) * np.eye(len(y))
        variance = (y @ np.linalg.solve(A, y) + kernel.outputscale) / (len(y) + 1)
    # the matrix of the last round goes with the variance it led to
    k = correlations(kernel, points, x)
    mean = k @ np.linalg.solve(A, y)
    sd = np.sqrt(variance * np.maximum(1.0 - np.sum(k * np.linalg.solve(A, k.T).T, axis=1), 1e-12))
    return math.sqrt(variance), mean, sd


def improvement(mean, sd, aim):
    """Expected improvement on aim, at one point."""
    z = (mean - aim) / sd
    return sd * (norm.pdf(z) + z * norm.cdf(z))


def ways(nodes, neighbours, price, candidates):
    """Cost of the cheapest way to every node (all in lengthscales) and the candidate it starts from."""
    cost, start = [math.inf] * len(nodes), [-1] * len(nodes)
    queue = []
    for i, node in enumerate(nodes):
        distances = np.linalg.norm(candidates - node, axis=1)
        nearest = int(np.argmin(distances))
        heapq.heappush(queue, (float(distances[nearest]) * price[i], i, nearest))
    while queue:
        c, i, s = heapq.heappop(queue)
        if c >= cost[i]:
            continue
        cost[i], start[i] = c, s
        for j in neighbours[i]:
            step = float(np.linalg.norm(nodes[i] - nodes[j]))
            heapq.heappush(queue, (c + 0.5 * step * (price[i] + price[j]), int(j), s))
    return np.array(cost), np.array(start)


def values_of_candidates(outputs, x, values, inside, candidates, nodes, caution, clearance, novelty, least_gain):
    """What every candidate is worth: the best log(gain) - way of all destinations reached from it; -inf if it is not new."""
    dim, lengthscales = x.shape[1], outputs[0].kernel.lengthscales(x.shape[1])
    seen = [outlook(o.kernel, x, values[:, i], o.noise, candidates) for i, o in enumerate(outputs)]
    new = np.zeros(len(candidates), dtype=bool)
    for o, (scale, _, sd) in zip(outputs, seen, strict=True):
        new |= (sd >= novelty * scale) & (5.0 * sd > o.min_width)
    worth = np.full(len(candidates), -np.inf)
    if not new.any():
        return worth
    kept = np.flatnonzero(new)
    o = outputs[0]
    at_samples = outlook(o.kernel, x, values[:, 0], o.noise, x[inside])[1]
    aim = at_samples.max() + least_gain * (values[:, 0].max() - values[:, 0].min()) + o.noise
    there = [outlook(o.kernel, x, values[:, i], o.noise, nodes) for i, o in enumerate(outputs)]
    doubt = np.zeros(len(nodes))
    for o, (scale, mean, sd) in zip(outputs, there, strict=True):
        if o.lower_limit is not None:
            doubt -= norm.logcdf((mean - o.lower_limit - clearance * scale) / sd)
        if o.upper_limit is not None:
            doubt -= norm.logcdf((o.upper_limit - mean - clearance * scale) / sd)
    price = 1.0 + caution * np.minimum(doubt, math.log(1e6))
    scaled = nodes / lengthscales
    neighbours = [np.argsort(np.linalg.norm(scaled - p, axis=1), kind="stable")[1 : 1 + 4 * dim] for p in scaled]
    cost, start = ways(scaled, neighbours, price, candidates[kept] / lengthscales)
    for i in kept:
        worth[i] = math.log(max(improvement(seen[0][1][i], seen[0][2][i], aim), 1e-300))
    for j in range(len(nodes)):
        i = kept[start[j]]
        gain = math.log(max(improvement(there[0][1][j], there[0][2][j], aim), 1e-300))
        worth[i] = max(worth[i], gain - cost[j])
    return worth

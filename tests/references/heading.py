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


def is_new(outputs, x, values, points, novelty):
    """Whether some output's power function, given noise-free samples, is large enough at each point."""
    new = []
    for p in points:
        best = False
        for i, o in enumerate(outputs):
            scale = outlook(o.kernel, x, values[:, i], o.noise, x[:1])[0]
            K = o.kernel(x, x) / o.kernel.outputscale + 1e-6 * np.eye(len(x))
            k = o.kernel(x, p[None, :])[:, 0] / o.kernel.outputscale
            power = math.sqrt(max(1.0 - k @ np.linalg.solve(K, k), 0.0))
            best |= power >= novelty and 5.0 * scale * power >= o.min_width
        new.append(best)
    return np.array(new, dtype=bool)


def ways(nodes, neighbours, price, candidates, first_leg):
    """Cost of the cheapest way from any candidate to every node (all in lengthscales) and the way's first node (-1: no way)."""
    cost, first = [math.inf] * len(nodes), [-1] * len(nodes)
    queue = []
    legs = [float(np.linalg.norm(candidates - node, axis=1).min()) for node in nodes]
    for i, leg in enumerate(legs):
        if leg <= first_leg or leg == min(legs):
            heapq.heappush(queue, (leg * price[i], i, i))
    while queue:
        c, i, f = heapq.heappop(queue)
        if c >= cost[i]:
            continue
        cost[i], first[i] = c, f
        for j in neighbours[i]:
            step = float(np.linalg.norm(nodes[i] - nodes[j]))
            heapq.heappush(queue, (c + 0.5 * step * (price[i] + price[j]), int(j), f))
    return np.array(cost), np.array(first)


def prices(outputs, there, caution, narrow, narrowest):
    """What a lengthscale costs at every node."""
    found = []
    for j in range(len(there[0][1])):
        doubt, margin = 0.0, math.inf
        for o, (scale, mean, sd) in zip(outputs, there, strict=True):
            if o.lower_limit is not None:
                doubt -= norm.logcdf((mean[j] - o.lower_limit) / sd[j])
                margin = min(margin, (mean[j] - o.lower_limit) / scale)
            if o.upper_limit is not None:
                doubt -= norm.logcdf((o.upper_limit - mean[j]) / sd[j])
                margin = min(margin, (o.upper_limit - mean[j]) / scale)
        found.append(1.0 + caution * min(doubt, math.log(1e6)) + narrow / max(margin, narrowest))
    return np.array(found)


def plans(outputs, x, values, inside, candidates, nodes, constants):
    """(worth of every new candidate itself, worth of every node as a destination, first node of the way to it)."""
    dim, o = x.shape[1], outputs[0]
    lengthscales = o.kernel.lengthscales(dim)
    at_samples = outlook(o.kernel, x, values[:, 0], o.noise, x[inside])[1]
    aim = at_samples.max() + constants["LEAST_GAIN"] * (values[:, 0].max() - values[:, 0].min()) + o.noise
    there = [outlook(o.kernel, x, values[:, i], o.noise, nodes) for i, o in enumerate(outputs)]
    price = prices(outputs, there, constants["CAUTION"], constants["NARROW"], constants["NARROWEST"])
    scaled = nodes / lengthscales
    neighbours = [np.argsort(np.linalg.norm(scaled - p, axis=1), kind="stable")[1 : 1 + 4 * dim] for p in scaled]
    cost, first = ways(scaled, neighbours, price, candidates / lengthscales, constants["FIRST_LEG"])
    _, mean, sd = outlook(o.kernel, x, values[:, 0], o.noise, candidates)
    at_once = [math.log(max(improvement(m, s, aim), 1e-300)) for m, s in zip(mean, sd, strict=True)]
    later = [math.log(max(improvement(m, s, aim), 1e-300)) - c for m, s, c in zip(*there[0][1:], cost, strict=True)]
    return np.array(at_once), np.array(later), first

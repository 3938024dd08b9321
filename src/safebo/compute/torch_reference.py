"""Reference backend in torch: plain batched tensor code in double precision, on the CPU or, if SAFEBO_DEVICE says so, on CUDA.

It transcribes the definitions with whole matrices and no shortcut that the fused backends take (no Markov recursion, no parabola
envelope, no single precision), which makes it the yardstick they are tested against.
"""

from __future__ import annotations

import math
import os

import numpy as np
import torch

from safebo.compute import FloatArray, Indices, SingleArray, variance_floor
from safebo.exceptions import InvalidValueError

_PAIRS_AT_ONCE = 25_000_000  # elements of the largest temporary tensor: 200 MB


def _correlation(r: torch.Tensor, family: str) -> torch.Tensor:
    if family == "rbf":
        return torch.exp(-0.5 * r * r)
    c = {"matern12": 1.0, "matern32": math.sqrt(3.0), "matern52": math.sqrt(5.0)}[family] * r
    factor = {"matern12": torch.ones_like(c), "matern32": 1.0 + c, "matern52": 1.0 + c + c * c / 3.0}[family]
    return factor * torch.exp(-c)


class TorchReference:
    """`Compute` with torch tensors."""

    def __init__(self, device: str) -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise InvalidValueError(f"SAFEBO_DEVICE is {device!r}, but torch sees no CUDA device: use 'cpu'.")
        self.device = torch.device(device)

    def _tensor(self, array: FloatArray | SingleArray) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), device=self.device).to(torch.float64)

    def scenario_parts(
        self,
        x: FloatArray,
        z: SingleArray,
        a: SingleArray,
        family: str,
        *,
        is_sorted: bool,
        inner: Indices | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """See `Compute.scenario_parts`."""
        m, _, size = z.shape
        samples = self._tensor(x)
        step = max(1, _PAIRS_AT_ONCE // max(size * size, 1))
        quad, sums = np.empty(m), np.empty((len(x), m))
        for first in range(0, m, step):
            block = slice(first, min(first + step, m))
            centres = self._tensor(z[block]).transpose(1, 2).contiguous()  # (b, T, n)
            weights = self._tensor(a[block])
            gram = _correlation(torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist"), family)
            rows, columns = weights, weights
            if inner is not None:  # pairs of one inner and one other centre come in two orders, of which one is a row
                other = torch.arange(size, device=self.device) >= torch.as_tensor(inner[block], device=self.device)[:, None]
                rows, columns = weights * ~other, weights * (1 + other.to(weights.dtype))
            quad[block] = torch.einsum("bi,bij,bj->b", rows, gram, columns).cpu().numpy()
            cross = torch.cdist(samples.expand(len(centres), -1, -1), centres, compute_mode="donot_use_mm_for_euclid_dist")
            sums[:, block] = (_correlation(cross, family) @ weights[:, :, None])[:, :, 0].T.cpu().numpy()
        return quad, sums

    def cholesky_solve(self, chol: FloatArray, rhs: FloatArray) -> FloatArray:
        """See `Compute.cholesky_solve`."""
        return np.asarray(torch.cholesky_solve(self._tensor(rhs), self._tensor(chol)).cpu().numpy())

    def advance(
        self,
        points: FloatArray,
        x: FloatArray,
        chol: FloatArray,
        white: FloatArray,
        betas: FloatArray,
        start: int,
        family: str,
        outputscale: float,
        basis: FloatArray | None,
        mean: FloatArray,
        variance: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """See `Compute.advance`."""
        step = max(1, _PAIRS_AT_ONCE // max(len(x), 1))
        factor = self._tensor(chol)
        for first in range(0, points.shape[1], step):
            block = slice(first, min(first + step, points.shape[1]))
            at = self._tensor(points[:, block]).T
            rows = torch.empty((len(x), at.shape[0]), dtype=torch.float64, device=self.device)
            if basis is not None and start > 0:
                rows[:start] = self._tensor(basis[:start, block])
            mu, var = self._tensor(mean[block]), self._tensor(variance[block])
            low, high = self._tensor(lower[block]), self._tensor(upper[block])
            for r in range(start, len(x)):
                distance = (at - self._tensor(x[r])).square().sum(dim=1).sqrt()
                row = outputscale * _correlation(distance, family) - factor[r, :r] @ rows[:r]
                rows[r] = row / factor[r, r]
                mu, var = mu + rows[r] * float(white[r]), var - rows[r] ** 2
                if betas[r] >= 0.0:
                    half = float(betas[r]) * var.clamp(min=variance_floor(r + 1, outputscale)).sqrt()
                    low, high = torch.maximum(low, mu - half), torch.minimum(high, mu + half)
            if basis is not None:
                basis[start : len(x), block] = rows[start:].cpu().numpy()
            for target, value in ((mean, mu), (variance, var), (lower, low), (upper, high)):
                target[block] = value.cpu().numpy()

    def intersect(
        self,
        points: FloatArray,
        x: FloatArray,
        vectors: FloatArray,
        weights: FloatArray,
        targets: FloatArray,
        factors: FloatArray,
        family: str,
        outputscale: float,
        lower: FloatArray,
        upper: FloatArray,
        mean: FloatArray,
        variance: FloatArray,
    ) -> None:
        """See `Compute.intersect`."""
        samples, basis = self._tensor(x), self._tensor(vectors).T
        weight, target, factor = self._tensor(weights), self._tensor(targets), self._tensor(factors)[:, None]
        step = max(1, _PAIRS_AT_ONCE // (len(weights) + len(x)))
        for first in range(0, points.shape[1], step):
            block = slice(first, min(first + step, points.shape[1]))
            distance = torch.cdist(samples, self._tensor(points[:, block]).T, compute_mode="donot_use_mm_for_euclid_dist")
            rotated = basis @ (outputscale * _correlation(distance, family))
            mu, var = target @ rotated, outputscale - weight @ rotated**2
            half = factor * var[:-1].clamp(min=variance_floor(len(x), outputscale)).sqrt()
            for low, high in zip(mu[:-1] - half, mu[:-1] + half, strict=True):
                lower[block] = np.maximum(lower[block], low.cpu().numpy())
                upper[block] = np.minimum(upper[block], high.cpu().numpy())
            mean[block], variance[block] = mu[-1].cpu().numpy(), var[-1].clamp(min=0.0).cpu().numpy()

    def lower_envelope(self, weights: FloatArray, spacing: FloatArray) -> FloatArray:
        """See `Compute.lower_envelope`; all pairs along each axis, O(G * length)."""
        result = self._tensor(weights)
        for axis, length in enumerate(weights.shape):
            index = torch.arange(length, dtype=torch.float64, device=self.device)
            offsets = ((index[:, None] - index[None, :]) * float(spacing[axis])) ** 2
            lines = result.movedim(axis, -1)
            flat = lines.reshape(-1, length)
            step = max(1, _PAIRS_AT_ONCE // (length * length))
            pieces = [(flat[i : i + step, None, :] + offsets).amin(dim=2) for i in range(0, len(flat), step)]
            result = torch.cat(pieces).reshape(lines.shape).movedim(-1, axis)
        return np.ascontiguousarray(result.cpu().numpy())


def create() -> TorchReference:
    """The backend, for the registry."""
    return TorchReference(os.environ.get("SAFEBO_DEVICE", "cpu"))

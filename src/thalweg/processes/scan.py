"""Where to start on a grid: lengthscales and noise compared over their whole range by the periodogram of the rows.

Rows are averaged in the cells of a grid, tapered and transformed: for rows that lie evenly the squares of what comes
out are independent, with the eigenvalues of the kernel on the grid plus the noise as their means (Whittle, 1954). That
is no more than a good guess where rows lie unevenly, but it costs one Fourier transform for each lengthscale, whatever
the number of rows, so that no start, however far off, is out of its reach.
"""

from typing import NamedTuple

import jax
import numpy as np
from scipy.ndimage import distance_transform_edt

from thalweg.kernels import Kernel, Stationary
from thalweg.processes.exact import Parameters
from thalweg.processes.host import HostRows
from thalweg.processes.torus import spectrum
from thalweg.threads import enough_threads

_CELLS = 2**16
"""The most cells."""

_ROWS_A_CELL = 2
"""Rows in a cell, in the mean."""

_GAPS = (0.0, 2.0)
"""Cells from one with rows to those that are taken to be like it: either may be the better guess."""

_STEP, _NOISE_STEP = 1.6, 4.0
"""Ratios between lengthscales and between noises that are compared."""

_LEAST_SHARE, _MOST_SHARE = 1e-7, 10.0
"""Noises that are compared, against the variance of the function."""


_PATCH = 600
"""Rows by which starts are compared."""

_LEAST_STARTING = 1e-2
"""The least share of the kernel's variance that noise starts with: without it solves for a rough kernel do not end."""


class Periodogram(NamedTuple):
    """Squares of the transform of averaged rows, each of a mean that is an eigenvalue plus the noise."""

    powers: np.ndarray
    """The mean over the targets."""
    counts: np.ndarray
    """Coordinates that an entry stands for, as a share of the cells with rows."""
    noise: float
    """The mean of 1/rows in a cell: what averaging leaves of the noise."""
    spacing: np.ndarray
    nodes: tuple[int, ...]


def periodogram(inputs: np.ndarray, residuals: np.ndarray, weights: np.ndarray, gap: float = 0.0) -> Periodogram:
    """That of rows and what is left of their targets once a mean is taken off.

    Zeros in cells without rows spread the power of all frequencies over each; what is beside them, up to a ``gap``,
    dampens the highest.
    """
    low, extent = inputs.min(axis=0), np.ptp(inputs, axis=0)
    extent = np.where(extent > 0, extent, 1.0)
    dimensions = inputs.shape[1]
    side = int(np.clip(len(inputs) / _ROWS_A_CELL, 16, _CELLS) ** (1 / dimensions))
    nodes = (max(side, 8),) * dimensions
    spacing = extent / (np.array(nodes) - 1)
    cells = np.ravel_multi_index(tuple(np.rint((inputs - low) / spacing).astype(int).T), nodes)
    size = int(np.prod(nodes))
    mass = np.bincount(cells, weights, size)
    filled = mass > 0
    away, beside = distance_transform_edt(~filled.reshape(nodes), return_indices=True)
    beside = np.ravel_multi_index(tuple(beside), nodes).ravel()
    known = np.ravel(away) <= gap
    # A taper keeps the ends from leaking into all frequencies.
    taper = np.ones(())
    for count in nodes:
        taper = np.multiply.outer(taper, np.sin(np.pi * (np.arange(count) + 0.5) / count) ** 2)
    taper = np.where(known, taper.ravel(), 0.0)
    powers = np.zeros((*nodes[:-1], nodes[-1] // 2 + 1))
    for column in residuals.T:
        means = np.bincount(cells, weights * column, size) / np.where(filled, mass, 1)
        powers += np.abs(np.fft.rfftn((taper * means[beside]).reshape(nodes))) ** 2
    last = np.arange(nodes[-1] // 2 + 1)
    counts = np.broadcast_to(np.where((last == 0) | (2 * last == nodes[-1]), 1.0, 2.0), powers.shape)
    powers /= max(float(np.sum(taper**2)), 1e-300) * residuals.shape[1]
    share = float(np.sum(filled)) / size
    return Periodogram(powers, share * counts, float(np.mean(1 / mass[filled])), spacing, nodes)


class Start(NamedTuple):
    """Parameters to start from, and what the periodogram thinks of them, in nats."""

    parameters: Parameters
    loss: float


def best_start(kernel: Kernel, noise: float | None, seen: Periodogram) -> Start:
    """The lengthscale, variance and noise that suit the periodogram best; one lengthscale multiplies those given.

    A kernel that has no lengthscale is left as it is, and only its noise looked for.
    """
    extent = float(np.max(seen.spacing * (np.array(seen.nodes) - 1) / _lengths(kernel, len(seen.nodes))))
    finest = float(np.min(seen.spacing / _lengths(kernel, len(seen.nodes))))
    scaled = isinstance(kernel, Stationary)
    steps = int(np.ceil(np.log(4 * extent / finest) / np.log(_STEP))) if scaled else 0
    ladder = finest / 2 * _STEP ** np.arange(steps + 1) if scaled else [1.0]
    best = Start(Parameters(kernel, np.asarray(0.0)), np.inf)
    for factor in ladder:
        moved = _moved(kernel, factor) if scaled else kernel
        eigenvalues = np.asarray(_spectrum(moved, seen.spacing, seen.nodes))
        loss, variance, found = _compare(eigenvalues, seen, noise, scaled)
        if loss < best.loss:
            size = np.asarray(variance * np.asarray(moved.variance)) if scaled else None
            chosen = moved._with(variance=size) if scaled else moved
            best = Start(Parameters(chosen, np.asarray(found)), loss)
    return best


def starts_by_periodogram(starts: list[Parameters], rows: HostRows, learn_noise: bool) -> list[Start]:
    """The starts moved to where a periodogram likes them best, the best of them first.

    Small gaps between rows are left open, or closed. What is found with either is judged by a patch of rows, as is
    which of the starts is best: as if all rows were like those.
    """
    left = rows.targets
    if rows.basis.shape[1]:
        root = np.sqrt(rows.weights)[:, None]
        left = left - rows.basis @ np.linalg.lstsq(root * rows.basis, root * left, rcond=None)[0]
    known = float(np.mean(rows.known))

    def moved(start: Parameters, seen: Periodogram) -> Parameters:
        found = best_start(start.kernel, None if learn_noise else float(start.noise) + known, seen)
        total = float(found.parameters.noise)
        least = max(1e-3 * total, _LEAST_STARTING * float(found.parameters.kernel.variance))
        noise = np.asarray(max(total - known, least)) if learn_noise else start.noise
        return Parameters(found.parameters.kernel, noise)

    patch, both = _patch(rows), [periodogram(rows.inputs, left, rows.weights, gap) for gap in _GAPS]

    def judged(parameters: Parameters) -> Start:
        with enough_threads(len(patch.inputs)):
            loss = float(patch.loss(parameters))
        return Start(parameters, loss * len(rows.inputs) / len(patch.inputs) if np.isfinite(loss) else np.inf)

    each = [[judged(moved(start, seen)) for seen in both] for start in starts]
    return sorted((min(found, key=lambda start: start.loss) for found in each), key=lambda start: start.loss)


def _patch(rows: HostRows) -> HostRows:
    """Some hundred rows that lie together, as densely as they are."""
    extent = np.ptp(rows.inputs, axis=0)
    places = rows.inputs / np.where(extent > 0, extent, 1.0)
    away = lambda place: np.sum((places - place) ** 2, axis=1)
    nearest = np.argsort(away(places[np.argmin(away(np.median(places, axis=0)))]), kind="stable")[:_PATCH]
    return HostRows(*(part[nearest] for part in rows))


_spectrum = jax.jit(spectrum, static_argnums=2)


def _lengths(kernel: Kernel, dimensions: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(kernel.lengthscale) if isinstance(kernel, Stationary) else 1.0, (dimensions,))


def _moved(kernel: Kernel, factor: float) -> Kernel:
    return kernel._with(lengthscale=np.asarray(factor * np.asarray(kernel.lengthscale)))


def _compare(
    eigenvalues: np.ndarray, seen: Periodogram, noise: float | None, scaled: bool
) -> tuple[float, float, float]:
    """The least loss over noises, with the factor of the variance and the noise that it is reached at."""
    total, best = float(np.sum(seen.counts)), (np.inf, 1.0, 1.0)
    scale = max(float(eigenvalues.mean()), 1e-300)  # the variance, since there is no other noise on the diagonal
    for share in _LEAST_SHARE * _NOISE_STEP ** np.arange(np.log(_MOST_SHARE / _LEAST_SHARE) / np.log(_NOISE_STEP)):
        means = eigenvalues + share * scale * seen.noise
        ratio = seen.counts * seen.powers / means
        variance = float(np.sum(ratio)) / total if scaled else 1.0
        if noise is not None and scaled:
            variance = max(noise, 1e-300) / (share * scale)
        variance = max(variance, 1e-300)
        value = (float(np.sum(seen.counts * np.log(means))) + total * np.log(variance)) / 2
        value += float(np.sum(ratio)) / variance / 2
        if value < best[0]:
            best = value, variance, share * scale * variance
    return best

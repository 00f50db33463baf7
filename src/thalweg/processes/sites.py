"""The posterior of a latent process with logistic labels, on the host: LAPACK and closed forms, nothing compiled.

The steps are those of PG-SVI, eq. (83), as in :mod:`thalweg.gaussian.divergence`. A factorisation of B = I + SKS, with
S² the sites, and the inverse of its factor take 2/3 n³ operations where solves for the variances take 4/3 n³: those
come from diag V = (1 − diag B⁻¹)/S² wherever sites leave enough digits.
"""

import time
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dlauum, dpotrf, dtrtri
from scipy.special import ndtr

from thalweg.descent import History, Status
from thalweg.gaussian.special import logistic_mixture

_TERMS = 20
"""Normals whose mixture is the logistic distribution."""

_FEW_DIGITS = 1e-6
"""A site times the prior's variance below which 1 − diag B⁻¹ leaves too few."""

_LONGER, _SHORTEST, _NEARBY = 1.5, 0.5, 16.0
"""How much longer the second step is, the shortest share of the way that a later one takes if it gains, and how many
times longer the first is from a posterior of a similar kernel."""

_HALVINGS = 40
"""Of a step that gains nothing; after so many there is nothing to gain."""


class State(NamedTuple):
    """A posterior N(m, V), m = K·weights and V⁻¹ = K⁻¹ + diag(sites), its loss, and the gradients of the likelihood."""

    weights: np.ndarray
    sites: np.ndarray
    inverse: np.ndarray
    """Of the Cholesky factor of B; empty for the prior."""
    mean: np.ndarray
    variance: np.ndarray
    loss: float
    """−bound."""
    slope: np.ndarray
    """−E[(log p)′], which are the weights at the optimum."""
    bend: np.ndarray
    """−E[(log p)″], which are the sites there."""

    def precision(self) -> np.ndarray:
        """The lower triangle of S·B⁻¹·S = (K + S⁻²)⁻¹, that of targets with Gaussian noise of the sites' size."""
        root = np.sqrt(self.sites)
        return root[:, None] * dlauum(self.inverse, lower=1)[0] * root


class Labels(NamedTuple):
    """Labels 0 and 1, and how often each counts."""

    targets: np.ndarray
    weights: np.ndarray

    def state(
        self, K: np.ndarray, weights: np.ndarray, sites: np.ndarray, inverse: np.ndarray, log_det: float
    ) -> State:
        """The posterior with these parameters, given the inverse of the factor of B and log |B|."""
        prior, mean, root = K.diagonal(), K @ weights, np.sqrt(sites)
        least = np.finfo(float).eps * prior
        if not len(inverse):
            variance = prior.copy()
        else:
            told = sites * prior > _FEW_DIGITS
            variance = (1 - np.einsum("ij,ij->j", inverse, inverse)) / np.where(told, sites, 1.0)
            rest = inverse @ (root[:, None] * K[:, ~told])
            variance[~told] = prior[~told] - np.sum(rest**2, axis=0)
        variance = np.maximum(variance, least)
        value, slope, bend = _logistic_loss(self.targets, mean, variance)
        kl = (log_det + mean @ weights - sites @ variance) / 2
        loss = float(self.weights @ value + kl)
        return State(weights, sites, inverse, mean, variance, loss, self.weights * slope, self.weights * bend)

    def moved(self, K: np.ndarray, before: State, share: float) -> State:
        """A natural-gradient step: a⁺ = a − ρ(q − S B⁻¹ S K q), q = a + slope, B that of the new sites."""
        sites = (1 - share) * before.sites + share * before.bend
        inverse, log_det = _factored(K, sites)
        pull, root = before.weights + before.slope, np.sqrt(sites)
        pull = pull - root * (inverse.T @ (inverse @ (root * (K @ pull))))
        return self.state(K, before.weights - share * pull, sites, inverse, log_det)

    def begun(self, K: np.ndarray, near: State | None) -> State:
        """The prior, or the posterior of the sites of another kernel's, each a normal target m + weights/sites."""
        zeros = np.zeros(len(K))
        if near is None:
            return self.state(K, zeros, zeros, np.zeros((0, 0)), 0.0)
        inverse, log_det = _factored(K, near.sites)
        root = np.sqrt(near.sites)
        seen = root * near.mean + np.divide(near.weights, root, out=zeros, where=root > 0)
        return self.state(K, root * (inverse.T @ (inverse @ seen)), near.sites, inverse, log_det)


class Climbed(NamedTuple):
    """The posterior that steps ended with."""

    state: State
    steps: int
    history: History
    status: Status


def climb(K: np.ndarray, labels: Labels, near: State | None, step: float, tol: float, max_iter: int) -> Climbed:
    """Steps from the prior, or from what was found for a similar kernel, until the natural gradient is short.

    Examples
    --------
    >>> labels = Labels(np.array([0.0, 1.0]), np.ones(2))
    >>> found = climb(np.eye(2), labels, None, 1.0, 1e-6, 100)
    >>> found.state.mean.round(4), found.status.name
    (array([-0.4131,  0.4131]), 'CONVERGED')
    """
    began = time.perf_counter()
    beta = step if near is None else _NEARBY * step
    share = beta / (1 + beta)
    records: list[tuple[float, ...]] = []
    status, before = Status.STEPS_SPENT, None
    state = labels.begun(K, near)
    try:
        while len(records) < max_iter:
            for _ in range(_HALVINGS):
                ahead = labels.moved(K, state, share)
                if ahead.loss <= state.loss:
                    break
                share /= 2
            else:
                status = Status.STAGNATED
                break
            residual = np.sqrt(max(_symmetric_kl(ahead, state), 0.0)) / share
            size = share / (1 - share) if share < 1 else np.inf
            records.append((len(records) + 1, ahead.loss, residual, size, 1.0, time.perf_counter() - began))
            # So that a row of weight two and two rows take the same steps.
            way, flat = np.sqrt(labels.weights) * (ahead.mean - state.mean) / share, ahead.loss == state.loss
            state = ahead
            if residual <= tol or flat:
                status = Status.CONVERGED if residual <= tol else Status.STAGNATED
                break
            share, before = _next(share, way, before), (share, way)
    except KeyboardInterrupt:
        if not records:
            raise
        status = Status.INTERRUPTED
    columns = np.array(records).reshape(-1, len(History.names)).T
    return Climbed(state, len(records), History(dict(zip(History.names, columns, strict=True))), status)


def _next(share: float, way: np.ndarray, before: tuple[float, np.ndarray] | None) -> float:
    """The share of the way to take next, by what the last step left of the way: a whole one may overshoot for ever.

    Along the slowest direction a share ρ leaves 1 − ρ(1 − μ) of the way, and 1/(1 − μ) would leave nothing.
    """
    if before is None:
        return min(_LONGER * share, 1.0)
    taken, former = before
    left = float(way @ former) / max(float(former @ former), np.finfo(float).tiny)
    return float(np.clip(taken / max(1 - left, taken), min(_SHORTEST, share), 1.0))


def factor(K: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """The Cholesky factor of B = I + SKS."""
    root = np.sqrt(sites)
    scaled = root[:, None] * K * root
    scaled[np.diag_indices_from(scaled)] += 1
    # The transpose is in the order that LAPACK reads, and the matrix is symmetric.
    return dpotrf(scaled.T, lower=1, clean=1, overwrite_a=1)[0]


def _factored(K: np.ndarray, sites: np.ndarray) -> tuple[np.ndarray, float]:
    """The inverse of that factor, and log |B|."""
    found = factor(K, sites)
    log_det = 2 * float(np.sum(np.log(found.diagonal())))
    return dtrtri(found, lower=1, overwrite_c=1)[0], log_det


def _symmetric_kl(one: State, other: State) -> float:
    ahead = one.mean - other.mean
    distance = 2 * ahead * (one.weights - other.weights) + (one.sites + other.sites) * ahead**2
    return float(np.sum(distance - (one.sites - other.sites) * (one.variance - other.variance))) / 2


def _logistic_loss(targets: np.ndarray, m: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """−E log p, −E[(log p)′] and −E[(log p)″] of labels, as :func:`thalweg.gaussian.special.expected_softplus`."""
    scales, weights = logistic_mixture(_TERMS)
    sign = 1 - 2 * targets
    deviation = np.sqrt(scales**2 + v[:, None])
    x = (sign * m)[:, None] / deviation
    density = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    first = ndtr(x) @ weights
    return sign * m * first + (deviation * density) @ weights, sign * first, (density / deviation) @ weights

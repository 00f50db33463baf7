"""The kernel that makes the bound of a latent process highest: starting points, and a race between them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from scipy.spatial.distance import pdist

from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Stationary
from thalweg.processes.covariance import log_gradient
from thalweg.processes.evidence import TOLERANCE_NATS, maximise
from thalweg.processes.exact import EvidenceEvaluation, computes_on_device
from thalweg.processes.inference import ClassifierSettings, LatentPosterior, LatentRows, infer
from thalweg.runs import Run
from thalweg.selection import Entry, race
from thalweg.threads import enough_threads

SUBSET_ROWS = 256
"""Rows that starting points are compared on where there are twice as many. With twice as many the choice is the same,
and takes longer than the rest of the fit."""

MAX_MEDIAN_ROWS = 300
"""Rows between which the median distance is taken; it is then off by a few percent."""

ONE_SCALE_RATIO = 1.5
"""The ratio of standard deviations below which features are taken to have one scale."""

LOOSENESS = 5.0
"""How many times wider the tolerance of posteriors is on the way to the best kernel: what they lack is a hundredth of
a nat. With ten times as much searches end early."""


def default_kernel(inputs: np.ndarray, kind: type[Stationary] = Gaussian) -> Kernel:
    """Return a kernel with the median distance between rows as lengthscale, and variance 10.

    Examples
    --------
    >>> default_kernel(np.array([[0.0], [2.0], [2.0]]))
    Gaussian(lengthscale=2, variance=10)
    """
    return starting_kernels(inputs, kind)[0]


def starting_kernels(inputs: np.ndarray, kind: type[Stationary] = Gaussian) -> list[Kernel]:
    """Return the default kernel, and if features differ in scale another with a lengthscale for each.

    Those are as the standard deviations are: the kernel of standardised features.

    Examples
    --------
    >>> starting_kernels(np.array([[0.0, 0.0], [2.0, 200.0]]))[1]
    Gaussian(lengthscale=[2.82843, 282.843], variance=10)
    """
    # Of rows that differ, so that a row given twice and a row of weight two lead to the same kernel.
    rows = np.unique(inputs, axis=0)
    rows = rows[0] - rows  # an offset costs digits
    unit = np.max(np.abs(rows)) or 1.0  # squares of very large or small numbers have none
    rows = rows / unit
    spread = rows.std(axis=0)
    varying = spread > 0
    scales: list[np.ndarray] = [np.ones(())]
    if np.any(varying) and spread.max() > ONE_SCALE_RATIO * spread[varying].min():
        scales = [np.ones(len(spread)), np.where(varying, spread, 1.0)]
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:MAX_MEDIAN_ROWS]]
    with jax.enable_x64(True):
        lengths = [jax.device_put(unit * _median_distance(rows / scale) * scale) for scale in scales]
        return [kind(lengthscale=length, variance=jax.device_put(np.array(10.0))) for length in lengths]


def _median_distance(rows: np.ndarray) -> float:
    distances = pdist(rows)
    return float(np.median(distances[distances > 0])) if np.any(distances > 0) else 1.0


class FittedKernel(NamedTuple):
    """A kernel, its posterior, and the rows that the posterior is of."""

    kernel: Kernel
    posterior: LatentPosterior
    rows: LatentRows


class BoundEvidence:
    """−bound of rows as a function of a kernel; each posterior starts from the one of the kernel before it."""

    def __init__(
        self,
        rows: LatentRows,
        settings: ClassifierSettings,
        seed: int,
        start: LatentPosterior | None,
        keep: Callable[[FittedKernel], None],
    ) -> None:
        self.rows, self.inputs, self.settings, self.seed, self.keep = rows, rows.inputs, settings, seed, keep
        self.last = start
        self.best: FittedKernel | None = None

    def infer(self, kernel: Kernel) -> LatentPosterior:
        """Return the posterior for a kernel, and keep it if it is the best so far; an interrupt is raised again."""
        self.last = infer(kernel, self.rows, self.settings, self.seed, self.last)
        if self.best is None or not self.last.bound <= self.best.posterior.bound:
            self.best = FittedKernel(kernel, self.last, self.rows)
            self.keep(self.best)
        if self.last.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return self.last

    def evaluate(self, kernel: Kernel) -> EvidenceEvaluation:
        """Return −bound, its gradient in the logarithms of all parameters, and the average information.

        At the best posterior the derivative of its own part vanishes; the information is that of targets with Gaussian
        noise of the sites' size.
        """
        posterior = self.infer(kernel)
        weights, precision = np.asarray(posterior.q.weights)[:, None], posterior.precision
        gradient, changes = log_gradient(kernel, self.inputs, (precision - weights @ weights.T) / 2, weights)
        information = None if changes is None else changes[:, :, 0].T @ precision @ changes[:, :, 0] / 2
        return EvidenceEvaluation(np.array([-posterior.bound]), gradient, information)


@dataclass(eq=False)
class LatentCandidate:
    """A kernel to start from, and what became of it on the last rung."""

    kernel: Kernel
    fitted: FittedKernel | None = None


class LatentRung(NamedTuple):
    """Rows that candidates are fitted to, and how closely."""

    rows: LatentRows
    settings: ClassifierSettings


def learn(kernels: list[Kernel], rows: LatentRows, settings: ClassifierSettings, seed: int, tied: bool) -> FittedKernel:
    """Return the best kernel that learning finds; without learning the best of those given.

    Starting points are compared loosely, on a subset of many rows, and the best of them goes on with all. An interrupt
    keeps the best so far. If ``tied``, lengthscales of features keep their proportions.
    """
    device, rng = computes_on_device(len(rows.inputs)), np.random.default_rng(seed)
    on_the_way = replace(settings, tol=LOOSENESS * settings.tol)
    rungs = [LatentRung(_subset(rows, seed), on_the_way), LatentRung(rows, on_the_way)]
    restarts = [settings.restarts if settings.learn else 0]

    def keep(fitted: FittedKernel) -> None:
        kept = run.kept
        order = lambda one: (len(one.rows.inputs), one.posterior.bound)
        if kept is None or order(fitted) > order(kept):
            run.keep(fitted)
        bound, count = fitted.posterior.bound, len(fitted.rows.inputs)
        run.advance(1, f"{count} rows, bound {bound:.2f}: {fitted.kernel}")

    def score(candidate: LatentCandidate, rung: LatentRung) -> np.ndarray:
        fitted = candidate.fitted
        same_rows = fitted is not None and len(fitted.rows.inputs) == len(rung.rows.inputs)
        start = fitted.posterior if fitted is not None and same_rows else None
        kernel = candidate.kernel if fitted is None else fitted.kernel
        with jax.enable_x64(True), enough_threads(len(rung.rows.inputs)):
            evidence = BoundEvidence(rung.rows, rung.settings, seed, start, keep)
            if settings.learn:
                tolerance = TOLERANCE_NATS if rung is rungs[0] else min(TOLERANCE_NATS, settings.tol)
                options = {"max_iter": 50, "tolerance": tolerance, "tied": tied, "deviation": np.inf}
                maximise(evidence, kernel, kernel, **options)
            else:
                evidence.infer(kernel)
        assert evidence.best is not None
        candidate.fitted = evidence.best
        return np.array([-evidence.best.posterior.bound])

    def propose(best: Entry[LatentCandidate], rung: LatentRung) -> list[list[LatentCandidate]]:
        count, restarts[0] = restarts[0], 0  # on the first rung alone
        assert best.candidate.fitted is not None
        return [[LatentCandidate(_moved(best.candidate.fitted.kernel, tied, rng))] for _ in range(count)]

    with Run("kernel of a Gaussian process", bar=settings.verbose) as run:
        parallel = not device and settings.batch_size is None
        race([LatentCandidate(kernel) for kernel in kernels], score, rungs, propose=propose, parallel=parallel)
        if not run.interrupted:
            kernel, posterior, _ = run.kept
            run.keep(FittedKernel(kernel, infer(kernel, rows, settings, seed, posterior), rows))
    kernel, posterior, used = run.kept
    status = Status.INTERRUPTED if run.interrupted else posterior.status
    return FittedKernel(kernel, posterior._replace(status=status), used)


def _moved(kernel: Kernel, tied: bool, rng: np.random.Generator) -> Kernel:
    """Return a kernel whose parameters are multiplied at random, by four on average or its inverse."""
    factor = lambda leaf: 4.0 ** rng.standard_normal(() if tied else np.shape(leaf))
    return jax.tree.map(lambda leaf: np.asarray(leaf * factor(leaf)), kernel)


def _subset(rows: LatentRows, seed: int) -> LatentRows:
    """Return some of many rows, a quarter of them at least of the rarer half of the targets if there are as many."""
    targets = rows.targets
    if len(targets) <= 2 * SUBSET_ROWS:
        return rows
    order = np.random.default_rng([seed, 1]).permutation(len(targets))
    above = targets[order] > np.mean(targets)
    rare = order[above if 2 * np.sum(above) < len(order) else ~above]
    few = rare[: max(SUBSET_ROWS // 4, SUBSET_ROWS * len(rare) // len(order))]
    rest = order[~np.isin(order, rare)]
    return rows.subset(np.sort(np.concatenate([few, rest[: SUBSET_ROWS - len(few)]])))

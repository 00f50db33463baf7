"""The kernel that makes the bound of a latent process highest: starting points, and a race between them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from thalweg.descent import Status
from thalweg.kernels import Gaussian, Kernel, Stationary
from thalweg.kernels.bandwidth import median_distance
from thalweg.processes.choose import LENGTH_MULTIPLIERS
from thalweg.processes.covariance import log_gradient
from thalweg.processes.evidence import PRIOR_DEVIATION, TOLERANCE_NATS, LogPosterior, maximise
from thalweg.processes.exact import EvidenceEvaluation, computes_on_device
from thalweg.processes.inference import ClassifierSettings, LatentPosterior, LatentRows, infer
from thalweg.processes.observations import varying
from thalweg.rows.scale import standard_scales
from thalweg.runs import Run
from thalweg.selection import Entry, race
from thalweg.threads import enough_threads

SUBSET_ROWS = 256
"""Rows that starting points are compared on where there are more than twice as many. A posterior of twice as many takes
eight times as long."""

ONE_SCALE_RATIO = 1.5
"""The ratio of standard deviations below which features are taken to have one scale: kernels for either would hardly
differ. With twice as much, a feature counts for a third of another before both kernels are tried."""


def starting_kernels(inputs: np.ndarray, kind: type[Stationary] = Gaussian) -> list[Kernel]:
    """Return a kernel with the median distance between rows as lengthscale and variance 10, and perhaps another.

    If features differ in scale that has a lengthscale for each, as the standard deviations are: it is the kernel of
    standardised features.

    Examples
    --------
    >>> starting_kernels(np.array([[0.0], [2.0], [2.0]]))
    [Gaussian(lengthscale=2, variance=10)]
    >>> starting_kernels(np.array([[0.0, 0.0], [2.0, 200.0]]))[1]
    Gaussian(lengthscale=[2.82843, 282.843], variance=10)
    """
    # Of rows that differ, so that a row given twice and a row of weight two lead to the same kernel.
    rows = np.unique(inputs, axis=0)
    spread, varies = standard_scales(rows), varying(rows)
    scales: list[np.ndarray] = [np.ones(())]
    if np.any(varies) and spread[varies].max() > ONE_SCALE_RATIO * spread[varies].min():
        scales = [np.ones(len(spread)), spread]
    median = lambda rows: median_distance(rows, np.random.default_rng(0)) if len(rows) > 1 else 1.0
    with jax.enable_x64(True):
        lengths = [jax.device_put(median(rows / scale) * scale) for scale in scales]
        return [kind(lengthscale=length, variance=jax.device_put(np.array(10.0))) for length in lengths]


@dataclass(eq=False)
class LatentCandidate:
    """A kernel, its posterior once there is one, and the rows that the posterior is of."""

    kernel: Kernel
    tied: bool
    """Whether lengthscales keep their proportions."""
    posterior: Any = None
    rows: Any = None

    @property
    def loss(self) -> float:
        """−bound, and what further lengthscales have to gain."""
        return -self.posterior.bound + (0.0 if self.tied else penalty(self.rows))


def penalty(rows: LatentRows) -> float:
    """The nats that a lengthscale for each feature must gain: half of log n for each but one (Schwarz, 1978)."""
    return (np.sum(varying(rows.inputs)) - 1) * np.log(len(rows.inputs)) / 2


class BoundEvidence:
    """−bound of rows as a function of a kernel; each posterior starts from the one of the kernel before it."""

    def __init__(
        self, rows: LatentRows, settings: ClassifierSettings, seed: int, candidate: LatentCandidate, run: Run
    ) -> None:
        self.rows, self.inputs, self.settings, self.seed, self.run = rows, rows.inputs, settings, seed, run
        self.last = candidate.posterior if candidate.rows is rows else None
        self.best = replace(candidate, posterior=None)

    def infer(self, kernel: Kernel) -> LatentPosterior:
        """Return the posterior for a kernel, and keep it if it is the best so far; an interrupt is raised again."""
        self.last = infer(kernel, self.rows, self.settings, self.seed, self.last)
        if self.best.posterior is None or not self.last.bound <= self.best.posterior.bound:
            self.best = LatentCandidate(kernel, self.best.tied, self.last, self.rows)
            order = lambda one: (len(one.rows.inputs), -one.loss)
            if self.run.kept is None or order(self.best) >= order(self.run.kept):
                self.run.keep(self.best)
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


def learn(
    kernels: list[Kernel], rows: LatentRows, settings: ClassifierSettings, seed: int, tied: bool
) -> LatentCandidate:
    """Return the best kernel that learning finds; without learning the best of those given.

    Starting points, each the likeliest of multiples of its lengthscale, are compared roughly and on a subset of many
    rows, and the best of them goes on with all. An interrupt keeps the best so far. If ``tied``, lengthscales of
    features keep their proportions unless one for each gains more than it would by chance.
    """
    subset, tried = subset_of_rows(rows, seed), set[int]()

    def rough(tolerance: float) -> ClassifierSettings:
        # A natural gradient of length r promises r²/2 nats: a tenth of the tolerance is left to gain.
        return replace(settings, tol=max(settings.tol, np.sqrt(tolerance / 5))) if settings.learn else settings

    def likeliest(start: LatentCandidate) -> LatentCandidate:
        evidence = BoundEvidence(subset, rough(TOLERANCE_NATS), seed, start, run)
        for multiplier in LENGTH_MULTIPLIERS:
            evidence.infer(type(start.kernel)(multiplier * start.kernel.lengthscale, start.kernel.variance))
        return evidence.best

    def score(candidate: LatentCandidate, rung: tuple[LatentRows, float]) -> np.ndarray:
        some, tolerance = rung
        with jax.enable_x64(True), enough_threads(len(some.inputs)):
            evidence, start = BoundEvidence(some, rough(tolerance), seed, candidate, run), candidate.kernel
            if settings.learn:
                deviation = PRIOR_DEVIATION if tied and not candidate.tied else np.inf
                bound = LogPosterior(evidence, start, tied=candidate.tied, deviation=deviation)
                maximise(bound, start, max_iter=settings.max_iter, tolerance=tolerance)
            else:
                evidence.infer(start)
        vars(candidate).update(vars(evidence.best))
        return np.array([candidate.loss])

    def refine(best: Entry[LatentCandidate], rung: tuple[LatentRows, float]) -> list[LatentCandidate]:
        winner, rows = best.candidate, rung[0]
        # No bound is above zero: what is left to gain may be less than what must be gained.
        if not (winner.tied and tied and settings.learn and 0 < penalty(rows) < best.loss) or len(rows.inputs) in tried:
            return []
        tried.add(len(rows.inputs))
        lengthscale = np.broadcast_to(winner.kernel.lengthscale, rows.inputs.shape[1:])
        return [replace(winner, kernel=type(winner.kernel)(lengthscale, winner.kernel.variance), tied=False)]

    with Run("kernel of a Gaussian process", bar=settings.verbose) as run:
        parallel = lambda rung: not computes_on_device(len(rung[0].inputs)) and settings.batch_size is None
        if run.hurries:  # the process of another class was interrupted
            kernels, rows, settings = kernels[:1], subset, replace(settings, learn=False)
        first = [(subset, TOLERANCE_NATS)] if settings.learn or subset is not rows else []
        rungs = [*first, (rows, min(TOLERANCE_NATS, settings.tol))]
        starts = [LatentCandidate(kernel, tied) for kernel in kernels]
        starts = list(map(likeliest, starts)) if tied and settings.learn else starts
        race(starts, score, rungs, refine=refine, parallel=parallel)
        run.say(f"{len(run.kept.rows.inputs)} rows, bound {run.kept.posterior.bound:.2f}: {run.kept.kernel}")
    best = run.kept
    interrupted = run.interrupted or run.hurries
    return replace(best, posterior=best.posterior._replace(status=Status.INTERRUPTED)) if interrupted else best


def subset_of_rows(rows: LatentRows, seed: int) -> LatentRows:
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

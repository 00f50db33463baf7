"""The kernel that makes rows most probable, by a race on subsets of the rows.

A candidate is a kernel with starting parameters; it is scored by fitting it to the rows of a rung and taking −log p(y)
there, as a sum over rows. Survivors go on from where they were on more rows. On the way the best one proposes others:
other starts, the other families from its own parameters, and sums with a second term, which has lengthscales of its
own, since real data seldom have one smoothness and one scale in each feature. A sum must be ahead by half the logarithm
of the number of rows for each further parameter (Schwarz, 1978).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np

from thalweg.descent import Status
from thalweg.kernels import Kernel, Matern12, Matern32, Stationary, Sum
from thalweg.kernels.host import summands
from thalweg.processes.evidence import Optimum, maximise
from thalweg.processes.exact import ExactEvidence, Parameters
from thalweg.processes.observations import varying
from thalweg.processes.problem import RegressionProblem, subset_rows, subset_sizes
from thalweg.runs import Run
from thalweg.selection import Entry, is_better, race
from thalweg.threads import enough_threads

LENGTH_MULTIPLIERS, NOISE_MULTIPLIERS = (1.0, 0.3, 0.1, 0.03), (5.0, 1.0, 0.1, 0.01)
"""Multipliers of lengthscales and of noise, all of which are tried as starts: few rows take fast waves for noise."""

EARLY_STEPS = 5
"""The most steps of candidates on the last rows of a race, which start from those on fewer rows. With twice as many the
choice is the same, and the race takes longer than the fit."""

LEVEL_STANDARD_ERRORS = 2.0
"""By how many standard errors a candidate may be behind the best and go on to more rows. With half as many, sums that
are best in the end were lost on 400 rows."""


@dataclass(eq=False)
class KernelCandidate:
    """A kernel with parameters to start from."""

    start: Parameters
    origin: Parameters
    """The centre of the prior."""
    optimum: Optimum | None = None
    """What a search on the last rung found."""

    @property
    def parameters(self) -> Parameters:
        """The best parameters so far."""
        return self.start if self.optimum is None else self.optimum.parameters


@dataclass
class KernelChoice:
    """The choice among kernels of one structure or, if there are several starts, among families and their sums.

    ``sums`` says whether a second term is tried; ``run`` keeps the best optimum so far.
    """

    problem: RegressionProblem
    sums: bool
    run: Run
    evaluations: int = 0

    def best(self, rungs: Sequence[ExactEvidence]) -> KernelCandidate:
        """Return the winner of a race on subsets of rows, from the smallest to the largest."""
        self.rungs, self.starts = rungs, self.problem.starts
        self.rng, self.rounds = np.random.default_rng(self.problem.seed), Counter[ExactEvidence]()
        self.singles: dict[tuple[ExactEvidence, type[Kernel]], Entry[KernelCandidate]] = {}
        start = self._likeliest(_multiplied(self.starts[0], LENGTH_MULTIPLIERS, self._noises(0)), rungs[0])
        result = race(
            [KernelCandidate(_with_family(start, one), one) for one in self.starts],
            self._score,
            rungs,
            propose=self._propose,
            least_gain=0.0,
            standard_errors=LEVEL_STANDARD_ERRORS,
            survivors=len(self.starts),
            kind=lambda candidate: tuple(map(type, summands(candidate.start.kernel))),
            parallel=lambda rung: not rung.on_device,
        )
        # Of candidates that are level on the last rows, the likeliest; those of an interrupted race have other rows.
        level = [] if result.interrupted else result.level
        return min([result.best, *level], key=lambda entry: entry.loss).candidate

    def fit(self, candidate: KernelCandidate, evidence: ExactEvidence, max_iter: int) -> Optimum:
        """Fit a candidate to rows, from where it is."""
        size, problem = len(evidence.inputs), self.problem
        with jax.enable_x64(True), enough_threads(size):
            posterior = problem.log_posterior(evidence, candidate.origin)
            optimum = maximise(posterior, candidate.parameters, max_iter=max_iter, keep=self._keep)
        candidate.optimum = optimum
        self.evaluations += optimum.evaluations
        text = f"{size} rows, {self.evaluations} evaluations, log p(y) {-optimum.loss:.2f}: {optimum.parameters.kernel}"
        self.run.advance(optimum.evaluations, text)
        return optimum

    def _keep(self, optimum: Optimum) -> None:
        """Make an optimum the result so far if it is the best of those of the most rows."""
        kept, rows = self.run.kept, len(optimum.losses)
        if kept is None or (-rows, optimum.loss) < (-len(kept.losses), kept.loss):
            self.run.keep(optimum)

    def _score(self, candidate: KernelCandidate, rung: ExactEvidence) -> np.ndarray:
        # Candidates that are fitted to fewer rows already need few steps to tell which is ahead.
        early = len(self.rungs) > 2 and rung is self.rungs[-1]
        max_iter = self.problem.settings.max_iter
        losses = self.fit(candidate, rung, min(max_iter, EARLY_STEPS) if early else max_iter).losses
        losses = losses + self._penalty(candidate.start.kernel, rung) / len(losses)
        entry, place = Entry(candidate, losses), (rung, type(candidate.start.kernel))
        if place not in self.singles or entry.loss < self.singles[place].loss:
            self.singles[place] = entry
        return losses

    def _penalty(self, kernel: Kernel, rung: ExactEvidence) -> float:
        """Return the nats that a kernel has to be ahead of one with a single smooth term.

        They are half the logarithm of the number of rows for each parameter of a second term, and once for a term whose
        functions have no derivative.
        """
        inputs = rung.inputs
        further = 1 + np.sum(varying(inputs)) if isinstance(kernel, Sum) else isinstance(kernel, Matern12)
        return float(further) * np.log(len(inputs)) / 2 if len(self.starts) > 1 else 0.0

    def _propose(self, best: Entry[KernelCandidate], rung: ExactEvidence) -> list[KernelCandidate]:
        """Return candidates made of the best one: other starts, the other families, and a second term."""
        self.rounds[rung] += 1
        winner = best.candidate
        proposed = self._other_starts(winner, rung) if self.rounds[rung] == 1 else []
        if not isinstance(winner.start.kernel, Sum) and len(self.starts) > 1:
            proposed = [*proposed, *self._other_families(winner, rung), *self._with_second_term(best, rung)]
        return proposed

    def _other_starts(self, winner: KernelCandidate, rung: ExactEvidence) -> list[KernelCandidate]:
        """Return random starts on the first rung, and on the second one shorter lengthscales if they are likelier."""
        index, origin = list(self.rungs).index(rung), winner.origin
        if index != 1:
            restarts, around = 0 if index else self.problem.settings.restarts, self.problem.log_posterior(rung, origin)
            return [KernelCandidate(around.draw(self.rng), origin) for _ in range(restarts)]
        shorter = _multiplied(winner.parameters, LENGTH_MULTIPLIERS[1:], self._noises(1))
        start = self._likeliest([winner.parameters, *shorter], rung)
        return [] if start is winner.parameters else [KernelCandidate(start, origin)]

    def _other_families(self, winner: KernelCandidate, rung: ExactEvidence) -> Iterator[KernelCandidate]:
        """Return families with the winner's parameters, where those are likelier than their own."""
        for start in self.starts:
            own, moved = self.singles.get((rung, type(start.kernel))), _with_family(winner.parameters, start)
            if own is not None and self._likeliest([own.candidate.parameters, moved], rung) is moved:
                yield KernelCandidate(moved, start)

    def _noises(self, first: int) -> tuple[float, ...]:
        return NOISE_MULTIPLIERS[first:] if self.problem.learn_noise else (1.0,)

    def _with_second_term(self, best: Entry[KernelCandidate], rung: ExactEvidence) -> list[KernelCandidate]:
        """Return sums of two terms, of the best family, of Matern32, and with a rough term, where those are level.

        Which family is ahead without a second term says little of which is with it, but where the rough one is, the
        rows mean two smooth terms of unlike scale as often as not.
        """
        # A second term begins with some of the noise, so there must be some.
        noise, least = best.candidate.parameters.noise, self.problem.least_noise(len(rung.inputs))
        early = rung is not self.rungs[min(1, len(self.rungs) - 1)] and rung is not self.rungs[-1]
        if early or not self.sums or (self.problem.learn_noise and noise <= 2 * least):
            return []
        self.sums = False  # once is enough: those that are level go on
        families = {type(start.kernel): start for start in self.starts}
        level = {
            family: one.candidate
            for (other, family), one in self.singles.items()
            if other is rung and family in families and not is_better(best, one, LEVEL_STANDARD_ERRORS)
        }
        rough = Matern12 in level
        first = best.candidate
        middle = self.singles.get((rung, Matern32), best).candidate if rough else level.get(Matern32, first)
        if isinstance(first.start.kernel, Matern12):
            first = middle
        pairs = [(one, type(one.start.kernel)) for one in dict.fromkeys([first, middle])]
        pairs += [(first, Matern12)] if rough else []
        return [self._sum(one, families[family], rung) for one, family in pairs]

    def _sum(self, first: KernelCandidate, second: Parameters, evidence: ExactEvidence) -> KernelCandidate:
        """Return a candidate with a second term, which begins with some of the noise."""
        kernel, noise = first.parameters
        lengths = second.kernel.lengthscale
        starts = []
        for multiplier, share in product(LENGTH_MULTIPLIERS[:2], (0.5, 0.1) if self.problem.learn_noise else (1.0,)):
            variance = np.maximum((1 - share) * noise, NOISE_MULTIPLIERS[2] * second.noise)
            term = with_parameters(second.kernel, multiplier * lengths, variance)
            starts.append(Parameters(Sum(kernel, term), np.asarray(share * noise)))
        term = with_parameters(second.kernel, lengths, second.noise)
        origin = Parameters(Sum(first.origin.kernel, term), first.origin.noise)
        return KernelCandidate(self._likeliest(starts, evidence), origin)

    def _likeliest(self, starts: Iterable[Parameters], evidence: ExactEvidence) -> Parameters:
        """Return the parameters that make rows most probable; the first if none can be told."""
        loss = lambda one: np.nan_to_num(np.sum(evidence.losses(one)), nan=np.inf)
        with jax.enable_x64(True), enough_threads(len(evidence.inputs)):
            return min(starts, key=loss)


def _multiplied(start: Parameters, lengths: Iterable[float], noises: Iterable[float]) -> Iterator[Parameters]:
    """Parameters with multiples of the lengthscales and of the noise."""
    kernel, noise = start
    for length, share in product(lengths, noises):
        moved = kernel
        if isinstance(kernel, Stationary):  # whose lengthscale is the first of its parameters
            moved = with_parameters(kernel, length * kernel.lengthscale, *jax.tree.leaves(kernel)[1:])
        yield Parameters(moved, np.asarray(share * noise))


def _with_family(parameters: Parameters, start: Parameters) -> Parameters:
    """Parameters with the family of a start."""
    return Parameters(with_parameters(start.kernel, *jax.tree.leaves(parameters.kernel)), parameters.noise)


def with_parameters(kernel: Kernel, *leaves: Any) -> Kernel:
    """Return a kernel with other parameters, on the host; a constructor would send them to an accelerator."""
    return jax.tree.unflatten(jax.tree.structure(kernel), [np.asarray(leaf) for leaf in leaves])


def learn(
    problem: RegressionProblem, run: Run, most: int, order: np.ndarray | None = None, sums: bool = True
) -> Optimum:
    """Return the best parameters on at most so many rows: the first of an order, by default a random one."""
    if not problem.learns:
        return Optimum(problem.starts[0], np.full(1, np.nan), 0, Status.CONVERGED, problem.starts[0])
    order = problem.order if order is None else order
    sizes = subset_sizes(min(most, len(order)))
    evidences = [problem.subset(size, order) for size in sizes]
    for evidence in evidences:
        evidence.prepare(problem.starts[0].kernel)
    raced = sum(size < 2 * subset_rows()[-2] for size in sizes)
    choice = KernelChoice(problem, sums and problem.kernel is None, run)
    winner = choice.best(evidences[:raced])
    for evidence in dict.fromkeys([*evidences[raced:], evidences[-1]]):
        if not run.interrupted:
            choice.fit(winner, evidence, problem.settings.max_iter)
    assert winner.optimum is not None
    return winner.optimum._replace(evaluations=choice.evaluations)

"""Kernel machines as in Li and Póczos (2017): the problems, the methods, and how a run is timed.

The objective is mean ℓ(f(x), y) + λ/2·‖f‖² over a fixed sample of the training rows, the same for all methods. A sum
of random features is in no RKHS of its kernel k but in those of Σ pᵢ φᵢᵀφᵢ, which estimate k for any weights p of the
blocks that sum to 1. Its norm is taken to be the least of them, ‖f‖ = Σ‖Wᵢ‖, which, but for noise, also bounds the
norm in k of the function that DSG, without a preconditioner, estimates. For one block it is ‖w‖ of the paper's (2).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from thalweg import data
from thalweg.descent import Constant, Polynomial, SquaredL2, minimize
from thalweg.kernels import Gaussian, Kernel, RandomFeatures, median_distance
from thalweg.machines import (
    Batch,
    Checked,
    Frequencies,
    HingeLoss,
    Loss,
    Machine,
    New,
    Rule,
    SoftmaxLoss,
    SquaredLoss,
    Uniform,
    empty,
    predict,
    run,
)
from thalweg.machines.expansion import Expansion, with_capacity
from thalweg.oracles import SVRG, MiniBatch

RIDGE = 1e-5
"""λ of Figure 1 and Table 3."""
STEPS_PER_SCAN = 4
"""Steps in one compiled scan. Twice as many would let a run end later than its time by as much."""
RECORD_GROWTH = 1.15
"""A score is taken whenever the time of training has grown by this factor: 33 scores between 1 % of it and the end."""


@dataclass(frozen=True)
class KernelProblem:
    """Training rows, the objective, and the sizes of batches and blocks (B and F).

    The first ``scored_rows`` training rows are those on which methods are scored. ``decide`` turns values of f into
    labels, to be compared with ``labels``; a regression has none. ``test_x`` and ``test_labels`` are test rows.
    """

    name: str
    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n c"]
    loss: Loss
    kernel: Kernel
    batch: int
    block: int
    scored_rows: int
    labels: np.ndarray | None = None
    decide: Callable[[np.ndarray], np.ndarray] = lambda f: np.argmax(f, axis=1)
    ridge: float = RIDGE
    test_x: np.ndarray | None = None
    test_labels: np.ndarray | None = None

    @property
    def title(self) -> str:
        """Return its name as people write it."""
        return {"cifar10": "CIFAR-10", "mnist": "MNIST"}.get(self.name, self.name.capitalize())

    @cached_property
    def on_device(self) -> tuple[Array, Array]:
        """The rows and their targets as JAX arrays."""
        return jnp.asarray(self.x), jnp.asarray(self.y)

    def score(self, function: Callable[[np.ndarray], np.ndarray], square_norm: float) -> "Score":
        """Score a function on the scored rows and, where there are test rows, by its labels of these."""
        score = self.score_values(function(self.x[: self.scored_rows]), square_norm)
        if self.test_x is None:
            return score
        return score._replace(test=float(np.mean(self.decide(function(self.test_x)) != self.test_labels)))

    def score_values(self, f: np.ndarray, square_norm: float) -> "Score":
        """Score a function by its values at the scored rows."""
        rows = slice(self.scored_rows)
        losses = self.loss.value(jnp.asarray(f), jnp.asarray(self.y[rows]))
        loss = float(np.mean(np.asarray(losses, np.float64)))
        error = np.nan if self.labels is None else float(np.mean(self.decide(f) != self.labels[rows]))
        return Score(loss + self.ridge / 2 * square_norm, loss, error)


class Score(NamedTuple):
    """The objective, the mean loss alone, the training error, and the test error."""

    objective: float
    loss: float
    error: float
    test: float = np.nan


def make_problem(
    name: str,
    x: np.ndarray,
    targets: np.ndarray,
    *,
    regression: bool = False,
    batch: int,
    block: int,
    scored_rows: int,
    seed: int,
) -> KernelProblem:
    """Return a problem with the median bandwidth: the softmax loss of labels, or the squared loss."""
    x = np.ascontiguousarray(x, np.float32)
    kernel = Gaussian(jnp.asarray(median_distance(x, jax.random.key(seed))), jnp.ones(()))
    labels = None if regression else np.unique(targets, return_inverse=True)[1]
    y = targets[:, None] if labels is None else np.eye(labels.max() + 1, dtype=np.float32)[labels]
    loss = SquaredLoss() if regression else SoftmaxLoss()
    rows = len(x)
    return KernelProblem(
        name, x, y.astype(np.float32), loss, kernel, min(batch, rows), block, min(scored_rows, rows), labels
    )


def load_problem(name: str, rows: int | None, *, batch: int, block: int, scored_rows: int, seed: int) -> KernelProblem:
    """Load so many training rows, in random order.

    "cifar10" and "mnist" are on 100 principal components, "protein" (a regression) is standardised.
    """
    shuffle = np.random.default_rng([seed, 0])
    sizes: dict[str, Any] = {"batch": batch, "block": block, "scored_rows": scored_rows, "seed": seed}
    if name == "protein":
        protein = data.load("uci/protein")
        train = np.flatnonzero(~protein.test_mask[:, 0])
        chosen = shuffle.permutation(train)[:rows]
        standardise = lambda values: (values - values[train].mean(axis=0)) / values[train].std(axis=0)
        return make_problem(
            name, standardise(protein.X)[chosen], standardise(protein.y)[chosen], regression=True, **sizes
        )
    images = data.load("cifar10_pca100" if name == "cifar10" else name)
    chosen = shuffle.permutation(len(images.y_train))[:rows]
    if name == "cifar10":
        x = images.Z_train[chosen]
    else:
        x = _principal_components(images.X_train[chosen].reshape(len(chosen), -1), 100)
    return make_problem(name, x, images.y_train[chosen], **sizes)


def _principal_components(x: np.ndarray, components: int) -> np.ndarray:
    x = x.astype(np.float32) / 255
    x -= x.mean(axis=0)
    _, basis = np.linalg.eigh(x.T @ x)
    return x @ basis[:, : -components - 1 : -1]


@dataclass
class TrainingCurve:
    """The scores of a run after so many seconds of training, and the steps and blocks it took in all."""

    method: str
    setting: str = ""
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    steps: int = 0
    blocks: int = 0

    def at(self, seconds: float) -> Score:
        """Return the last score by then; infinite where the run has diverged."""
        score = self.scores[np.searchsorted(self.seconds, seconds, side="right") - 1]
        return score if np.isfinite(score.objective) else Score(np.inf, np.inf, 1.0, 1.0)

    def column(self, name: str) -> np.ndarray:
        """Return one field of the scores along the run."""
        return np.array([getattr(score, name) for score in self.scores])


class TrainingClock:
    """Counts the seconds of training, and stands still while scores are taken.

    ``start()`` starts the clock. Call it with a state after each part of the training, and stop when it returns True.
    The first score is that of f = 0.
    """

    def __init__(
        self,
        problem: KernelProblem,
        curve: TrainingCurve,
        seconds: float,
        score: Callable[[Any], Score],
        read_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.curve, self._budget, self._score, self._read_clock = curve, seconds, score, read_clock
        self._elapsed, self._next_record, self._started = 0.0, 0.0, 0.0
        zeros = np.zeros((problem.scored_rows, problem.y.shape[1]), np.float32)
        curve.seconds.append(0.0)
        curve.scores.append(problem.score_values(zeros, 0.0))

    def start(self) -> None:
        """Start, or go on after something that does not count."""
        self._started = self._read_clock()

    def __call__(self, state: Any) -> bool:
        jax.block_until_ready(state)
        self._elapsed += self._read_clock() - self._started
        is_over = self._elapsed >= self._budget
        if is_over or self._elapsed >= self._next_record:
            score = self._score(state)
            self.curve.seconds.append(self._elapsed)
            self.curve.scores.append(score)
            self._next_record = RECORD_GROWTH * self._elapsed
            is_over = is_over or not np.isfinite(score.objective)
        self.start()
        return is_over


CAPPED = "CDSG ≤ 10γ"
"""CDSG whose step along an old block is at most ten times that of the schedule; as published there is no bound."""
RULES: dict[str, Rule] = {"DSG": New(), "UDSG": Uniform(1, 1), "CDSG": Checked(stretch=np.inf), CAPPED: Checked()}
MATCHED_RULES: dict[str, Rule] = {"DSG": New(), "UDSG": Uniform(1, 1), "CDSG": Checked(stretch=1.0)}
"""Rules with the same steps for all: an old block that passes the check gets no longer one."""


def run_machine(
    problem: KernelProblem,
    rule: Rule,
    step: Polynomial,
    *,
    precondition: bool,
    seconds: float,
    capacity: int,
    curve: TrainingCurve,
    read_clock: Callable[[], float] = time.perf_counter,
) -> TrainingCurve:
    """Run DSG or one of its relatives. Compiling does not count: each program runs once before it is timed."""
    dimension = problem.x.shape[1]
    features = Frequencies(RandomFeatures(problem.kernel, jax.random.key(curve.seed), dimension, problem.block))
    machine = Machine(features, problem.loss, rule, step, jnp.asarray(problem.ridge), precondition)
    expansion = empty(features, dimension, problem.y.shape[1], capacity, jnp.float32)

    def score(expansion: Expansion) -> Score:
        norm = expansion.scale * jnp.sum(jnp.sqrt(jnp.sum(expansion.weights**2, axis=(1, 2))))
        return problem.score(lambda x: predict(features, expansion, x), float(norm**2))

    x, y = problem.on_device
    clock, compiled_capacity = TrainingClock(problem, curve, seconds, score, read_clock), 0
    for indices in _batches(len(x), problem.batch, curve.seed):
        grown = with_capacity(expansion, int(expansion.used) + STEPS_PER_SCAN, None)
        if grown.capacity != compiled_capacity:
            compiled_capacity = grown.capacity
            jax.block_until_ready(_advance(machine, grown, x, y, indices, curve.seed))
            clock.start()
        expansion = _advance(machine, grown, x, y, indices, curve.seed)
        if clock(expansion):
            break
    curve.steps, curve.blocks = int(expansion.steps), int(expansion.used)
    return curve


def compile_rules(problem: KernelProblem, rules: Iterable[Rule], *, precondition: bool, capacity: int) -> None:
    """Compile the programs of several methods in parallel."""
    _ = problem.on_device  # once, and not in each of the threads
    options: dict[str, Any] = {"precondition": precondition, "seconds": 0.0, "capacity": capacity}
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def compile_rule(rule: Rule) -> None:
        with jax.enable_x64(x64):  # a thread has settings of its own
            run_machine(problem, rule, Polynomial(1.0), curve=TrainingCurve(""), **options)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_rule, rules))


def _advance(machine: Machine, expansion: Expansion, x: Array, y: Array, indices: np.ndarray, seed: int) -> Expansion:
    batches = Batch(x[indices], y[indices], jnp.ones(indices.shape, x.dtype))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), expansion.steps), len(indices))
    return run(machine, expansion, batches, keys)[0]


def _batches(rows: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of ``STEPS_PER_SCAN`` batches at a time, pass after pass, each in a new order."""
    remaining, number = np.empty(0, np.int32), 0
    while True:
        while len(remaining) < STEPS_PER_SCAN * size:
            remaining = np.concatenate([remaining, _permutation(rows, seed, number)])
            number += 1
        indices, remaining = np.split(remaining, [STEPS_PER_SCAN * size])
        yield indices.reshape(STEPS_PER_SCAN, size)


# Millions of rows take a second to shuffle, and every run of a seed begins with the same order.
@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, number: int) -> np.ndarray:
    return np.random.default_rng([seed, 1, number]).permutation(rows).astype(np.int32)


def run_svrg(
    problem: KernelProblem,
    size: float,
    *,
    batch: int,
    seconds: float,
    curve: TrainingCurve,
    frequencies: int | None = None,
) -> TrainingCurve:
    """Run SVRG with constant steps on random features (4F unless given); making them counts."""
    width = 4 * problem.block if frequencies is None else frequencies
    features = RandomFeatures(problem.kernel, jax.random.key(curve.seed), problem.x.shape[1], width)
    x, y = problem.on_device
    score = lambda w: problem.score(lambda x: np.asarray(_features(features, jnp.asarray(x)) @ w), float(jnp.sum(w**2)))
    clock = TrainingClock(problem, curve, seconds, score)
    batch = min(batch, len(x))
    period = 2 * len(x) // batch

    def train(is_over: Callable[[Any], bool]) -> int:
        oracle = SVRG(MiniBatch(_linear_loss(problem.loss), (_features(features, x), y), batch), period, restart="last")
        return minimize(
            oracle,
            jnp.zeros((features.width, y.shape[1]), x.dtype),
            term=SquaredL2(problem.ridge),
            step=Constant(size),
            callback=lambda snapshot: is_over(snapshot.x),
            steps=10**8,
            stride=max(10, period // 8),
            key=jax.random.key(curve.seed),
        ).steps

    train(lambda w: True)  # to compile it
    clock.start()
    curve.steps = train(clock)
    return curve


@jax.jit
def _features(features: RandomFeatures, x: Array) -> Array:
    return features(x, 0)


@cache
def _linear_loss(loss: Loss) -> Callable[[Array, tuple[Array, Array]], Any]:
    return lambda w, rows: loss.value(rows[0] @ w, rows[1])


def one_vs_one(problem: KernelProblem) -> KernelProblem:
    """Return the same rows with a hinge loss for each pair of classes, and labels by vote: what LIBSVM minimises."""
    assert problem.labels is not None
    classes = problem.y.shape[1]
    first, second = np.triu_indices(classes, 1)
    votes, code = np.eye(classes, dtype=int), np.eye(classes, dtype=np.float32)
    y = (code[:, first] - code[:, second])[problem.labels]
    decide = lambda f: np.argmax((f > 0) @ votes[first] + (f <= 0) @ votes[second], axis=1)
    return replace(problem, y=y, loss=PairwiseHinge(), decide=decide)


class PairwiseHinge(HingeLoss):
    """max(0, 1 − y·f) in the columns where y is −1 or 1, and 0 where y is 0: a row is in some pairs only."""

    def value(self, f: Any, y: Any) -> Array:
        """Return the sum over the pairs of each row."""
        return jnp.sum(jnp.abs(y) * jnp.maximum(0, 1 - y * f), axis=1)

    def longest(self, outputs: int) -> float:
        """Return M = √(C − 1) for the C(C − 1)/2 pairs of C classes: a row has a derivative of 1 in C − 1 of them.

        >>> PairwiseHinge().longest(outputs=45)  # ten classes
        3.0
        """
        classes = (1 + np.sqrt(1 + 8 * outputs)) / 2
        return float(np.sqrt(classes - 1))

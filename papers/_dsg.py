"""Kernel machines as in Li and Póczos (2017): the problems, the methods, and how a run is timed.

The objective is mean ℓ(f(x), y) + λ/2·‖f‖² over a fixed sample of the training rows, the same for all methods. A sum
of random features is in no RKHS of its kernel k but in those of Σ pᵢ φᵢᵀφᵢ, which estimate k for any weights p of the
blocks that sum to 1. Its norm is taken to be the least of them, ‖f‖ = Σ‖Wᵢ‖, which, but for noise, also bounds the
norm in k of the function that DSG, without a preconditioner, estimates. For one block it is ‖w‖
of the paper's (2). Landmarks have f = Σ k(·, xⱼ)Wⱼ and ‖f‖² = Σ ⟨Wⱼ, f(xⱼ)⟩.
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
    Rows,
    Rule,
    Settings,
    SoftmaxLoss,
    SquaredLoss,
    Uniform,
    empty,
    predict,
    run,
)
from thalweg.machines.expansion import Expansion, with_room
from thalweg.machines.learners import start
from thalweg.oracles import SVRG, MiniBatch

RIDGE = 1e-5

# Steps in one compiled scan.
_CHUNK = 4
# A record whenever the time of training has grown by so much.
_GROWTH = 1.15


@dataclass(frozen=True)
class Problem:
    """Rows to learn from, what is minimised, and the sizes of batches and blocks (B and F).

    ``decide`` turns values of f into labels, which ``labels`` are the truth of; a regression has neither. The first
    ``sample`` rows are those that methods are judged by, and rows that are ``new`` to them, where there are any.
    """

    name: str
    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n c"]
    loss: Loss
    kernel: Kernel
    batch: int
    block: int
    sample: int
    labels: np.ndarray | None = None
    decide: Callable[[np.ndarray], np.ndarray] = lambda f: np.argmax(f, axis=1)
    ridge: float = RIDGE
    new: np.ndarray | None = None
    new_labels: np.ndarray | None = None

    @property
    def title(self) -> str:
        """Its name, as people write it."""
        return {"cifar10": "CIFAR-10", "mnist": "MNIST"}.get(self.name, self.name.capitalize())

    @cached_property
    def on_device(self) -> tuple[Array, Array]:
        """The rows and their targets, where the computing is done."""
        return jnp.asarray(self.x), jnp.asarray(self.y)

    def score(self, values: Callable[[np.ndarray], np.ndarray], square_norm: float) -> "Score":
        """Judge a function, by its values at the sample and, where there are new rows, by its labels of them."""
        score = self.judge(values(self.x[: self.sample]), square_norm)
        if self.new is None:
            return score
        return score._replace(test=float(np.mean(self.decide(values(self.new)) != self.new_labels)))

    def judge(self, f: np.ndarray, square_norm: float) -> "Score":
        """Judge a function by its values at the sample."""
        losses = self.loss.value(jnp.asarray(f), jnp.asarray(self.y[: self.sample]))
        loss = float(np.mean(np.asarray(losses, np.float64)))
        error = np.nan if self.labels is None else float(np.mean(self.decide(f) != self.labels[: self.sample]))
        return Score(loss + self.ridge / 2 * square_norm, loss, error)


class Score(NamedTuple):
    """The objective, the mean loss alone, and the part of labels missed, in training and of new rows."""

    objective: float
    loss: float
    error: float
    test: float = np.nan


def problem(
    name: str,
    x: np.ndarray,
    targets: np.ndarray,
    *,
    regression: bool = False,
    batch: int,
    block: int,
    sample: int,
    seed: int,
) -> Problem:
    """Return a problem with the median bandwidth: softmax of labels, or least squares."""
    x = np.ascontiguousarray(x, np.float32)
    kernel = Gaussian(jnp.asarray(median_distance(x, jax.random.key(seed))), jnp.ones(()))
    labels = None if regression else np.unique(targets, return_inverse=True)[1]
    y = targets[:, None] if labels is None else np.eye(labels.max() + 1, dtype=np.float32)[labels]
    loss = SquaredLoss() if regression else SoftmaxLoss()
    return Problem(name, x, y.astype(np.float32), loss, kernel, min(batch, len(x)), block, min(sample, len(x)), labels)


def load(name: str, rows: int | None, *, batch: int, block: int, sample: int, seed: int) -> Problem:
    """Load so many training rows, in random order.

    "cifar10" and "mnist" are on 100 principal components, "protein" (a regression) is standardised.
    """
    shuffle = np.random.default_rng([seed, 0])
    parts: dict[str, Any] = {"batch": batch, "block": block, "sample": sample, "seed": seed}
    if name == "protein":
        found = data.load("uci/protein")
        train = np.flatnonzero(~found.test_mask[:, 0])
        chosen = shuffle.permutation(train)[:rows]
        standard = lambda values: (values - values[train].mean(axis=0)) / values[train].std(axis=0)
        return problem(name, standard(found.X)[chosen], standard(found.y)[chosen], regression=True, **parts)
    found = data.load("cifar10_pca100" if name == "cifar10" else name)
    chosen = shuffle.permutation(len(found.y_train))[:rows]
    x = found.Z_train[chosen] if name == "cifar10" else _principal(found.X_train[chosen].reshape(len(chosen), -1), 100)
    return problem(name, x, found.y_train[chosen], **parts)


def _principal(x: np.ndarray, components: int) -> np.ndarray:
    x = x.astype(np.float32) / 255
    x -= x.mean(axis=0)
    _, basis = np.linalg.eigh(x.T @ x)
    return x @ basis[:, : -components - 1 : -1]


@dataclass
class Curve:
    """How one run went: scores after so many seconds of training, and what it took in all."""

    method: str
    setting: str = ""
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    steps: int = 0
    blocks: int = 0

    def at(self, seconds: float) -> Score:
        """The last score by then; infinite where the run has diverged."""
        score = self.scores[np.searchsorted(self.seconds, seconds, side="right") - 1]
        return score if np.isfinite(score.objective) else Score(np.inf, np.inf, 1.0, 1.0)

    def column(self, name: str) -> np.ndarray:
        """One of the scores along the run."""
        return np.array([getattr(score, name) for score in self.scores])


class Watch:
    """Counts the seconds of training and takes scores now and then, for which the clock stands still.

    ``begin()`` starts the clock; call it with a state after each part of the training, and stop when it says so. The
    first score is that of f = 0.
    """

    def __init__(self, of: Problem, curve: Curve, seconds: float, score: Callable[[Any], Score]) -> None:
        self.curve, self._budget, self._score = curve, seconds, score
        self._spent, self._due, self._mark = 0.0, 0.0, 0.0
        curve.seconds.append(0.0)
        curve.scores.append(of.judge(np.zeros((of.sample, of.y.shape[1]), np.float32), 0.0))

    def begin(self) -> None:
        """Start, or go on after something that does not count."""
        self._mark = time.perf_counter()

    def __call__(self, state: Any) -> bool:
        jax.block_until_ready(state)
        self._spent += time.perf_counter() - self._mark
        over = self._spent >= self._budget
        if over or self._spent >= self._due:
            score = self._score(state)
            self.curve.seconds.append(self._spent)
            self.curve.scores.append(score)
            self._due = _GROWTH * self._spent
            over = over or not np.isfinite(score.objective)
        self.begin()
        return over


CAPPED = "CDSG ≤ 10γ"
"""CDSG whose step along an old block is at most ten times that of the schedule; as published there is no bound."""
RULES: dict[str, Rule] = {"DSG": New(), "UDSG": Uniform(1, 1), "CDSG": Checked(stretch=np.inf), CAPPED: Checked()}
# The same steps for all: an old block that passes the check gets no longer one.
MATCHED_RULES: dict[str, Rule] = {"DSG": New(), "UDSG": Uniform(1, 1), "CDSG": Checked(stretch=1.0)}


def machine(
    of: Problem, rule: Rule, step: Polynomial, *, precondition: bool, seconds: float, capacity: int, curve: Curve
) -> Curve:
    """Run DSG or one of its relatives. Compiling does not count: each program runs once before it is timed."""
    features = Frequencies(RandomFeatures(of.kernel, jax.random.key(curve.seed), of.x.shape[1], of.block))
    parts = Machine(features, of.loss, rule, step, jnp.asarray(of.ridge), precondition)
    expansion = empty(features, of.x.shape[1], of.y.shape[1], capacity, jnp.float32)

    def score(expansion: Expansion) -> Score:
        norm = expansion.scale * jnp.sum(jnp.sqrt(jnp.sum(expansion.weights**2, axis=(1, 2))))
        return of.score(lambda x: predict(features, expansion, x), float(norm**2))

    x, y = of.on_device
    watch, compiled = Watch(of, curve, seconds, score), 0
    for indices in _batches(len(x), of.batch, curve.seed):
        grown = with_room(expansion, int(expansion.used) + _CHUNK, None)
        if grown.capacity != compiled:
            compiled = grown.capacity
            jax.block_until_ready(_advance(parts, grown, x, y, indices, curve.seed))
            watch.begin()
        expansion = _advance(parts, grown, x, y, indices, curve.seed)
        if watch(expansion):
            break
    curve.steps, curve.blocks = int(expansion.steps), int(expansion.used)
    return curve


def prepare(of: Problem, rules: Iterable[Rule], *, precondition: bool, capacity: int) -> None:
    """Compile the programs of several methods beside each other."""
    _ = of.on_device  # once, and not in each of the threads
    options: dict[str, Any] = {"precondition": precondition, "seconds": 0.0, "capacity": capacity}
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]

    def compile_one(rule: Rule) -> None:
        with jax.enable_x64(wide):  # a thread has settings of its own
            machine(of, rule, Polynomial(1.0), curve=Curve(""), **options)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, rules))


def _advance(parts: Machine, expansion: Expansion, x: Array, y: Array, indices: np.ndarray, seed: int) -> Expansion:
    batches = Batch(x[indices], y[indices], jnp.ones(indices.shape, x.dtype))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), expansion.steps), len(indices))
    return run(parts, expansion, batches, keys)[0]


def _batches(rows: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the rows of ``_CHUNK`` batches at a time, pass after pass, each in a new order."""
    waiting, number = np.empty(0, np.int32), 0
    while True:
        while len(waiting) < _CHUNK * size:
            waiting = np.concatenate([waiting, _order(rows, seed, number)])
            number += 1
        now, waiting = np.split(waiting, [_CHUNK * size])
        yield now.reshape(_CHUNK, size)


# Millions of rows take a second to shuffle, and every run of a seed begins with the same order.
@lru_cache(maxsize=2)
def _order(rows: int, seed: int, number: int) -> np.ndarray:
    return np.random.default_rng([seed, 1, number]).permutation(rows).astype(np.int32)


def svrg(
    of: Problem, size: float, *, batch: int, seconds: float, curve: Curve, frequencies: int | None = None
) -> Curve:
    """Run SVRG with steps of that size on random features (4F unless told); making them counts."""
    width = 4 * of.block if frequencies is None else frequencies
    features = RandomFeatures(of.kernel, jax.random.key(curve.seed), of.x.shape[1], width)
    x, y = of.on_device
    score = lambda w: of.score(lambda x: np.asarray(_features(features, jnp.asarray(x)) @ w), float(jnp.sum(w**2)))
    watch = Watch(of, curve, seconds, score)
    batch = min(batch, len(x))
    period = 2 * len(x) // batch

    def train(until: Callable[[Any], bool]) -> int:
        oracle = SVRG(MiniBatch(_linear(of.loss), (_features(features, x), y), batch), period, restart="last")
        start = jnp.zeros((features.width, y.shape[1]), x.dtype)
        callback = lambda snapshot: until(snapshot.x)
        options: dict[str, Any] = {"steps": 10**8, "stride": max(10, period // 8), "key": jax.random.key(curve.seed)}
        return minimize(
            oracle, start, term=SquaredL2(of.ridge), step=Constant(size), callback=callback, **options
        ).steps

    train(lambda w: True)  # to compile it
    watch.begin()
    curve.steps = train(watch)
    return curve


@jax.jit
def _features(features: RandomFeatures, x: Array) -> Array:
    return features(x, 0)


@cache
def _linear(loss: Loss) -> Callable[[Array, tuple[Array, Array]], Array]:
    return lambda w, rows: loss.value(rows[0] @ w, rows[1])


def landmarks(of: Problem, *, seconds: float, curve: Curve) -> Curve:
    """Run what the estimators do by default, with this kernel and ridge: blocks of landmarks, visited one by one."""
    settings = Settings(loss=of.loss)
    rows = Rows(of.x, of.y, np.ones(len(of.x)))
    order = np.random.default_rng([curve.seed, 2]).permutation(len(rows))
    alpha = of.ridge * len(rows)
    fresh = lambda: start(settings, of.kernel, of.x.shape[1], of.y.shape[1], len(rows), curve.seed, np.float32)

    def score(expansion: Expansion) -> Score:
        inside = learner.machine.coordinates
        at_landmarks = predict(inside, expansion, np.asarray(expansion.blocks).reshape(-1, of.x.shape[1]))
        weights = np.asarray(expansion.scale * expansion.weights).reshape(at_landmarks.shape)
        square = float(np.vdot(weights.astype(np.float64), at_landmarks))
        return of.score(lambda x: predict(inside, expansion, x), square)

    learner = fresh()
    # To compile it: the learner scans eight blocks at a time, and one at a time at the end.
    for _ in learner.learn(rows, order[: 9 * settings.block_size], alpha, len(rows)):
        pass
    for _ in learner.again(rows, order, alpha, len(rows)):
        jax.block_until_ready(learner.expansion)
        break
    learner = fresh()
    watch = Watch(of, curve, seconds, score)
    watch.begin()
    learn: Any = learner.learn
    while True:
        for _ in learn(rows, order, alpha, len(rows)):
            curve.steps += 1
            curve.blocks = int(learner.expansion.used)
            if watch(learner.expansion):
                return curve
        learn = learner.again


def one_vs_one(of: Problem) -> Problem:
    """Return the same rows with a hinge loss for each pair of classes, and labels by vote: what LIBSVM minimises."""
    assert of.labels is not None
    classes = of.y.shape[1]
    first, second = np.triu_indices(classes, 1)
    votes, code = np.eye(classes, dtype=int), np.eye(classes, dtype=np.float32)
    y = (code[:, first] - code[:, second])[of.labels]
    decide = lambda f: np.argmax((f > 0) @ votes[first] + (f <= 0) @ votes[second], axis=1)
    return replace(of, y=y, loss=PairwiseHinge(), decide=decide)


class PairwiseHinge(HingeLoss):
    """max(0, 1 − y·f) in the columns where y is −1 or 1, and nothing where it is 0: a row is in some pairs only."""

    def value(self, f: Float[Array, "n pairs"], y: Float[Array, "n pairs"]) -> Float[Array, " n"]:
        """What is missing of a margin of 1."""
        return jnp.sum(jnp.abs(y) * jnp.maximum(0, 1 - y * f), axis=1)

    def longest(self, outputs: int) -> float:
        """M = √(C − 1) for the C(C − 1)/2 pairs of C classes: a row is in C − 1 of them, with a slope of 1 in each.

        >>> PairwiseHinge().longest(outputs=45)  # ten classes
        3.0
        """
        classes = (1 + np.sqrt(1 + 8 * outputs)) / 2
        return float(np.sqrt(classes - 1))

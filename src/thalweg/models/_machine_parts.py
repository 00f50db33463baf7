"""From the words of a kernel estimator's parameters to the parts of a machine."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.arguments import number, whole
from thalweg.descent.steps import Polynomial, as_step
from thalweg.kernels import Kernel
from thalweg.machines import learners
from thalweg.machines.coordinates import Points, coordinates
from thalweg.machines.rules import Capped, Checked, New, Rule, Uniform
from thalweg.machines.steps import Machine
from thalweg.machines.visits import Visitor
from thalweg.oracles.losses import Loss

METHODS = ("auto", "dsg", "udsg", "cdsg")
FEATURES = ("auto", "landmarks", "random", "orthogonal", "quasi")

# Batches of a preconditioned step, in features of a block: fewer rows than features would fit the batch alone.
_ROWS_A_FEATURE = 4
# Rounds of a visit. More of them in a stream fit each block as if it were the last one; a lone block is solved.
_ROUNDS, _ROUNDS_OF_ONE_BLOCK = 5, 1000


@dataclass(frozen=True)
class Words:
    """The parameters of an estimator that decide how it learns, checked."""

    method: str
    features: str
    block_size: int
    max_features: int
    batch_size: int | None
    step: Any
    precondition: bool
    periods: tuple[int, int]
    keep_frequencies: bool
    tol: float

    @property
    def visits(self) -> bool:
        """Whether landmarks learn from their own rows."""
        return self.method == "auto" and self.features == "landmarks"


def checked_words(estimator: Any) -> Words:
    """Check the parameters of an estimator; what is "auto" or None is decided here."""
    method = _one_of("method", estimator.method, METHODS)
    features = _one_of("features", estimator.features, FEATURES)
    if features == "auto":
        features = "landmarks" if method == "auto" else "random"
    for name in ("precondition", "keep_frequencies", "warm_start"):
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise TypeError(f"{name} must be True or False, found {getattr(estimator, name)!r}")
    if not isinstance(estimator.verbose, int | np.bool_):
        raise TypeError(f"verbose must be True or False, found {estimator.verbose!r}")
    precondition = estimator.precondition
    if method == "auto" and not precondition:
        raise ValueError("precondition must be True with method='auto', whose steps are solutions of block problems")
    periods = estimator.periods
    if not isinstance(periods, tuple | list) or len(periods) != 2:
        raise TypeError(f"periods must be a pair (G, U) of whole numbers, found {periods!r}")
    return Words(
        method=method,
        features=features,
        block_size=whole("block_size", estimator.block_size),
        max_features=whole("max_features", estimator.max_features),
        batch_size=None if estimator.batch_size is None else whole("batch_size", estimator.batch_size),
        step=estimator.step,
        precondition=bool(precondition),
        periods=(whole("periods[0]", periods[0]), whole("periods[1]", periods[1], least=0)),
        keep_frequencies=bool(estimator.keep_frequencies),
        tol=float(number("tol", estimator.tol, least=0)),
    )


def make_learner(
    words: Words,
    kernel: Kernel,
    loss: Loss,
    dimension: int,
    outputs: int,
    rows: int | None,
    seed: int,
    dtype: Any,
    room: bool = True,
) -> learners.Learner:
    """Return a learner that knows nothing, for so many rows; None means a stream without an end.

    Without ``room`` it has no place for blocks: it will be given arrays that have.
    """
    size = words.block_size if rows is None else min(words.block_size, _power_of_two(rows))
    key = jax.random.key(seed)
    parts = coordinates(kernel, words.features, key, dimension, size, words.keep_frequencies)
    if words.method == "auto" and parts.width > words.max_features:
        size = max(size * words.max_features // parts.width, 1)
        parts = coordinates(kernel, words.features, key, dimension, size, words.keep_frequencies)
    limit = max(words.max_features // parts.width, 1)
    batch_size = words.batch_size or _ROWS_A_FEATURE * parts.width
    if isinstance(parts, Points) and not words.visits and batch_size < size:
        raise ValueError(
            f"batch_size must be at least block_size={size} with features='landmarks', which are rows of the batch; "
            f"found {batch_size}"
        )
    machine = Machine(parts, loss, _rule(words, limit), _step(words, loss), jnp.asarray(0.0), words.precondition)
    capacity = (1 if rows is None else min(-(-rows // size), limit)) if room else 0
    if not (words.visits and isinstance(parts, Points)):
        return learners.start(machine, dimension, outputs, min(capacity, 8), batch_size, seed, dtype)
    rounds = _ROUNDS_OF_ONE_BLOCK if rows is not None and rows <= size else _ROUNDS
    visitor = Visitor(parts, loss, jnp.asarray(0.0), jnp.asarray(words.tol), rounds)
    return learners.start_landmarks(machine, visitor, dimension, outputs, capacity, batch_size, seed, dtype)


def _rule(words: Words, limit: int) -> Rule:
    match words.method:
        case "dsg":
            return New()
        case "udsg":
            return Uniform(*words.periods)
        case "cdsg":
            return Checked()
        case _:
            return Capped(limit)


def _step(words: Words, loss: Loss) -> Any:
    if words.step is not None:
        step = as_step(words.step)
        if not hasattr(step, "size"):
            raise TypeError(f"step must be a number or a schedule count -> size, found {words.step!r}")
        return step
    if words.method == "auto":
        return None
    # A preconditioned step of size 1 would solve for the block on this batch; steps that fall as 1/√t average batches.
    # Without a preconditioner 1/L is the longest step that does not overshoot.
    return Polynomial(0.5 if words.precondition else 1 / loss.curvature, power=0.5, scale=10.0)


def _power_of_two(rows: int) -> int:
    return max(32, 1 << (rows - 1).bit_length())


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, found {value!r}")
    return value

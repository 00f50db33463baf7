"""One iteration covers every method here:

    x⁺ = argmin_x  ⟨ĝ(y_k), x⟩ + h(x) + D(x ‖ c_k) / β_k                                    (1)

Four interchangeable parts: the oracle ĝ, the term h, the divergence D, the step β. Momentum picks two points
from the past, y, where the gradient is taken, and c, where the step is centred; averaging defines the
solution. Gradient descent, ISTA and FISTA, projected and mirror descent, natural gradient, SGD and SVRG are
choices of these parts and nothing else.

:class:`Descent` is the iteration alone: ``init`` and ``update(state, key) -> (state, info)``, pure functions of
pytrees that can be jit-compiled, scanned and vmapped. State is carried; info is only looked at, and what is not
looked at is not computed. When and why to stop, what to record and what to show belong to the loop around it,
:func:`~thalweg.descent.minimize`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree, Scalar

from thalweg import trees
from thalweg.arguments import instance
from thalweg.descent.averaging import Averaging, Last
from thalweg.descent.divergences import Divergence, Euclidean, find_closed_form
from thalweg.descent.momentum import Momentum, NoMomentum
from thalweg.descent.programs import compiled
from thalweg.descent.searches import Backtracking
from thalweg.descent.steps import Move, StepRule, as_step
from thalweg.descent.terms import Term, Zero
from thalweg.errors import IncompatiblePartsError
from thalweg.oracles.base import Oracle, Out, as_oracle

__all__ = ["Descent", "Info", "State"]


class State(NamedTuple):
    """What is carried from step to step.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> Descent(jnp.sum, step=0.1).init(jnp.ones(1)).steps
    Array(0, dtype=int32)
    """

    x: PyTree[Array]
    steps: Int[Array, ""]
    """How many were taken."""
    oracle: PyTree
    step: PyTree
    momentum: PyTree
    average: PyTree


class Info(NamedTuple):
    """What can be looked at after a step.

    Examples
    --------
    >>> Info(value=1.0, residual=0.5, size=0.1, work=1.0).size
    0.1
    """

    value: Scalar
    """f + h: at the new iterate for an exact oracle; else the estimate of f where the gradient was taken, plus h at
    the old iterate; NaN if unknown."""
    residual: Scalar
    """‖G_k‖."""
    size: Scalar
    """β_k, as it was taken."""
    work: Scalar
    """The oracle's work in this step."""


_NO_TERM, _EUCLIDEAN, _NO_MOMENTUM, _LAST = Zero(), Euclidean(), NoMomentum(), Last()


class Descent(trees.Part):
    """The iteration as a pure ``init`` and ``update``; parts that do not fit are refused here.

    Parameters
    ----------
    oracle
        An :class:`~thalweg.oracles.base.Oracle`, or a plain function x -> scalar whose exact gradient is taken.
    term
        h; none by default.
    divergence
        D; Euclidean by default.
    step
        β: a number, a schedule, a rule, or an Optax optimiser. For an exact oracle the default is
        :class:`~thalweg.descent.Backtracking`; a stochastic one has no safe default.
    momentum, average
        None by default.

    Examples
    --------
    Ten steps of gradient descent, as one compiled scan:

    >>> import jax, jax.numpy as jnp
    >>> descent = Descent(lambda x: 0.5 * jnp.sum(x**2), step=0.5)
    >>> keys = jax.random.split(jax.random.key(0), 10)
    >>> state, info = jax.lax.scan(descent.update, descent.init(jnp.ones(2)), keys)
    >>> state.x * 2**10
    Array([1., 1.], dtype=float...)
    """

    oracle: Oracle
    term: Term
    divergence: Divergence
    step: StepRule
    momentum: Momentum
    average: Averaging

    def __init__(
        self,
        oracle: Any,
        *,
        term: Term | None = None,
        divergence: Divergence | None = None,
        step: Any = None,
        momentum: Momentum | None = None,
        average: Averaging | None = None,
    ) -> None:
        self.oracle = as_oracle(oracle)
        self.term = instance("term", _NO_TERM if term is None else term, Term)
        self.divergence = instance("divergence", _EUCLIDEAN if divergence is None else divergence, Divergence)
        self.step = as_step(_default_step(self.oracle) if step is None else step)
        self.momentum = instance("momentum", _NO_MOMENTUM if momentum is None else momentum, Momentum, "FISTA()")
        self.average = instance("average", _LAST if average is None else average, Averaging, "PolyakRuppert()")
        find_closed_form(self.divergence, self.term)
        for misfit, message in _CONFLICTS:
            if misfit(self):
                names = {name: f"{name}={type(part).__name__}" for name, part in vars(self).items()}
                raise IncompatiblePartsError(message.format(**names))

    def init(self, x: PyTree) -> State:
        """Return the state at the starting point, after checking that it fits all the parts."""
        x = as_point(x)
        trees.call(self.divergence, "check", x)
        trees.call(self.term, "check", x)
        return State(
            x=x,
            steps=trees.scalar(0, jnp.int32),
            oracle=self._initial_oracle_state(x),
            step=trees.call(self.step, "init", x),
            momentum=trees.call(self.momentum, "init", x),
            average=trees.call(self.average, "init", x),
        )

    def _initial_oracle_state(self, x: PyTree[Array]) -> PyTree:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self.oracle, x)))
        if traced or self.oracle.period is None:
            return trees.call(self.oracle, "init", x)
        # An outer loop begins with a full gradient, which takes long where every operation is compiled by itself.
        return compiled(type(self.oracle).init, self.oracle)(x)

    def update(self, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
        """Take one step.

        An oracle with an outer loop (:class:`~thalweg.oracles.SVRG`) also wants :meth:`renew` every
        ``oracle.period`` steps; :func:`minimize` calls it, your own loop must.
        """
        instance("state", state, State, "descent.init(x)")
        point, centre = self.momentum.points(state.x, state.momentum)
        out, oracle_state = _estimate(self.oracle, point, state.oracle, key)
        state, info = self.advance(state, point, centre, out, oracle_state)
        if not self.tests_iterate:
            info = info._replace(residual=self._residual_at_solution(state, info, key).astype(info.residual.dtype))
        return state, info

    def advance(
        self, state: State, point: PyTree[Array], centre: PyTree[Array], out: Out, oracle_state: PyTree
    ) -> tuple[State, Info]:
        """Take the step of :meth:`update` with a gradient that is already there."""
        _check_gradient(type(self.oracle).__name__, out.gradient, centre)
        gradient = jax.tree.map(lambda g, c: g.astype(c.dtype), out.gradient, centre)
        move = Move(self, state.steps, point, centre, out._replace(gradient=gradient))
        taken = self.step.take(move, state.step)
        if self.exact:
            f_value = self.oracle.value(taken.x) if taken.value is None else taken.value
            value = f_value + self.term.value(taken.x)
        else:
            value = out.value + self.term.value(state.x)
        dtype = trees.dtype(state.x)
        info = Info(
            value=jnp.asarray(value, dtype),
            residual=jnp.asarray(self.step.residual_norm(move, taken), dtype),
            size=jnp.asarray(taken.size, dtype),
            work=out.work * (1 + taken.evaluations),
        )
        return State(
            x=taken.x,
            steps=state.steps + 1,
            oracle=oracle_state,
            step=taken.state,
            momentum=self.momentum.remember(state.x, taken.x, centre, state.momentum),
            average=self.average.update(taken.x, state.average),
        ), info

    @property
    def tests_iterate(self) -> bool:
        """Whether the residual of a step is that of the solution; an average lags behind, and an Optax update may lead
        anywhere. (Noise that does not vanish leaves nothing to test.)"""
        ours = isinstance(self.average, Last) and not self.step.additive
        return ours or not self.oracle.vanishing_noise

    def _residual_at_solution(self, state: State, info: Info, key: Key[Array, ""]) -> Scalar:
        x = self.average.solution(state.x, state.average)
        gradient = self.oracle.estimate(x, state.oracle, key)[0].gradient
        if self.step.additive:
            return trees.norm(gradient)
        gradient = jax.tree.map(lambda g, leaf: g.astype(leaf.dtype), gradient, x)
        return self.divergence.residual_norm(x, self.divergence.step(x, gradient, info.size, self.term), info.size)

    def f(self, x: PyTree[Array]) -> Scalar:
        """Evaluate the smooth part of the objective; refuse where the oracle cannot evaluate it exactly."""
        if not self.exact:
            raise IncompatiblePartsError(
                f"step={type(self.step).__name__} searches along a line, which needs an exact oracle that can be "
                f"evaluated; oracle={type(self.oracle).__name__} is none"
            )
        return self.oracle.value(x)

    @property
    def exact(self) -> bool:
        """Whether gradients are exact and the function can be evaluated."""
        return self.oracle.deterministic and self.oracle.value is not None

    @property
    def factorises(self) -> bool:
        """Whether a step factorises a matrix as large as x."""
        return self.term.factorises or self.divergence.factorises

    def renew(self, state: State) -> State:
        """Close an outer iteration of the oracle: for SVRG, a new snapshot. Every ``oracle.period`` steps."""
        x, oracle_state = self.oracle.renew(state.x, state.oracle)
        return state._replace(x=x, oracle=oracle_state)

    def objective(self, x: PyTree[Array]) -> Scalar:
        """f(x) + h(x) where the oracle can evaluate f, else NaN."""
        return objective((self.oracle, self.term), x)

    def solution(self, state: State) -> PyTree[Array]:
        """Return the average that was asked for, or the iterate."""
        return trees.call(self.average, "solution", state.x, state.average)


def objective(parts: tuple[Oracle, Term], x: PyTree[Array]) -> Scalar:
    """Return f(x) + h(x) where the oracle can evaluate f, else NaN."""
    oracle, term = parts
    value = jnp.nan if oracle.value is None else oracle.value(x) + term.value(x)
    return jnp.asarray(value, trees.dtype(x))


def _is_set(term: Term) -> bool:
    return term.indicator and not isinstance(term, Zero)


_CONFLICTS: list[tuple[Callable[["Descent"], bool], str]] = [
    (
        lambda d: d.step.needs_value and not d.exact,
        "{step} needs exact gradients and a function that can be evaluated, which {oracle} has not. Use a constant, a "
        "schedule or an Optax optimiser.",
    ),
    (
        lambda d: d.step.needs_exact and not d.oracle.deterministic,
        "{step} needs exact gradients, which {oracle} has not. Use a constant, a schedule or an Optax optimiser.",
    ),
    (
        lambda d: d.step.needs_euclidean and not isinstance(d.divergence, Euclidean),
        "{step} measures in the Euclidean norm, which is not that of {divergence}. Use Euclidean, or Backtracking.",
    ),
    (
        lambda d: d.step.additive and not (isinstance(d.divergence, Euclidean) and isinstance(d.term, Zero)),
        "{step} adds an update of its own, which is no minimiser of (1) with {term} and {divergence}. It works with "
        "Zero and Euclidean; for the others use a number, a schedule or Backtracking.",
    ),
    (
        lambda d: d.momentum.extrapolates and not d.divergence.linear,
        "{momentum} extrapolates, which can leave the space of {divergence}. Use momentum=None, or a linear geometry: "
        "Euclidean, DiagonalMetric, MatrixMetric.",
    ),
    (
        lambda d: d.step.compares_objective and d.momentum.extrapolates and not d.momentum.looks_ahead,
        "{step} compares with the objective at the iterate, but {momentum} steps from elsewhere, from where no size "
        "need lower it. Use a number, or FISTA or Nesterov.",
    ),
    (
        lambda d: d.step.compares_objective and d.momentum.extrapolates and _is_set(d.term),
        "{step} compares with the objective where the step begins, which {momentum} may take out of the set of {term}, "
        "where it is infinite. Use Backtracking, or momentum=None.",
    ),
    (
        lambda d: d.oracle.period is not None and d.momentum.extrapolates,
        "{momentum} does not survive the outer loop of {oracle}, which replaces the iterate. Use momentum=None, or "
        "LooplessSVRG.",
    ),
    (
        lambda d: not isinstance(d.average, Last) and not d.term.convex,
        "{average} can leave the domain of {term}, which is not convex. Use average=None.",
    ),
]
"""Parts that do not fit one another, with what would work."""


def _default_step(oracle: Oracle) -> StepRule:
    if oracle.deterministic and oracle.value is not None:
        return Backtracking()
    raise IncompatiblePartsError(
        f"step must be given: oracle={type(oracle).__name__} is noisy or cannot be evaluated, so no rule can find "
        f"the step size. Pass a number (about 1/L), a schedule, or an Optax optimiser such as optax.adam(1e-2)."
    )


def as_point(x: PyTree) -> PyTree[Array]:
    """Return ``x`` with floating JAX arrays as leaves, or say which leaf cannot be a point to start from."""
    if not jax.tree.leaves(x):
        raise ValueError("x0 holds no array: there is nothing to minimise over")
    if not sum(map(np.size, jax.tree.leaves(x))):
        raise ValueError("x0 holds no number: there is nothing to minimise over")

    def leaf(path: tuple, value: Any) -> Array:
        name = "x0" + jax.tree_util.keystr(path)
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name} must not be masked: fill in what is missing, found {value!r}")
        try:
            if isinstance(value, np.ndarray | np.generic):
                # Copied in this machine's order of bytes: device_put may share memory, and takes no other order.
                array = jax.device_put(np.array(value, value.dtype.newbyteorder("=")))
            else:
                array = jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be an array of numbers, found {type(value).__name__}") from error
        if jnp.issubdtype(array.dtype, jnp.integer):
            array = array.astype(jnp.result_type(float))
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} must hold real numbers, found dtype {array.dtype}")
        if not isinstance(array, jax.core.Tracer) and not np.all(finite := np.isfinite(np.asarray(array))):
            index = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(f"{name} must be finite, found {array[index]} at index {index}")
        return array

    return jax.tree_util.tree_map_with_path(leaf, x)


def _estimate(oracle: Oracle, x: PyTree[Array], state: PyTree, key: Key[Array, ""]) -> tuple[Out, PyTree]:
    """Ask the oracle; an error of its function is raised in its name."""
    try:
        return oracle.estimate(x, state, key)
    except (TypeError, ValueError) as error:
        if str(error).startswith("oracle="):
            raise
        # Not of the error's own type: JAX has some that cannot be made from a message.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        shapes = jax.tree.map(jnp.shape, x)
        raise kind(f"oracle={type(oracle).__name__} failed at a point of x0's shape {shapes}: {error}") from error


def _check_gradient(oracle: str, gradient: PyTree[Array], x: PyTree[Array]) -> None:
    """Refuse a gradient that does not look like x; it costs nothing, since shapes are known when a step is traced."""
    if not trees.same_structure(gradient, x):
        tree, expected = jax.tree.structure(gradient), jax.tree.structure(x)
        raise ValueError(f"oracle={oracle} returned a gradient with the tree {tree}, but x0 has {expected}")
    for (path, leaf), g in zip(jax.tree_util.tree_leaves_with_path(x), jax.tree.leaves(gradient), strict=True):
        if jnp.shape(g) != leaf.shape:
            raise ValueError(
                f"oracle={oracle} returned a gradient of shape {jnp.shape(g)} for x0{jax.tree_util.keystr(path)}, "
                f"which has shape {leaf.shape}"
            )

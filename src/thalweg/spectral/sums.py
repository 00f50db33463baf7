"""The sums by name: log-determinant, trace of the inverse, entropy, Estrada index, Schatten norms.

Called on concrete arrays they choose their method, plan by themselves, raise where something is wrong, and widen an
interval that turns out too narrow; under jit or vmap they need a plan, and return a status instead.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Key

from thalweg import arguments
from thalweg.linalg.operators.base import Operator, frozen, is_concrete, is_traced
from thalweg.linalg.operators.convert import gram_operator
from thalweg.spectral.bounds import find_spectrum
from thalweg.spectral.estimate import Estimate, Plan, add_stored_rounding
from thalweg.spectral.functions import Exponential, Power, entropy_density, named, reciprocal
from thalweg.spectral.methods import Target, call_in_float64, compute_sum, target_of

__all__ = ["entropy", "estrada", "logdet", "spectral_sum", "trace_exp", "trace_inverse"]
__all__ += ["nuclear_norm", "schatten_norm"]

SAFE_BITS = 64
"""Powers of two that float32 holds with room for sums: the fourth powers of entries from 2⁻¹⁶ to 2¹⁶, and powers of
singular values up to the fourth. Other matrices are scaled. At twice as many, sums of powers overflow."""


def spectral_sum(
    f: Callable[[Any], Any] | str,
    A: Any,
    key: Key[Array, ""],
    *,
    plan: Plan | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    budget: int | None = None,
    method: str = "auto",
    **options: Any,
) -> Estimate:
    """Estimate tr f(A) without bias, with an error bar.

    ``jax.grad`` of the ``value`` is an unbiased estimate of the gradient.

    Parameters
    ----------
    f
        An elementwise function written in :mod:`jax.numpy`, analytic on the spectrum; or ``"log"`` or ``"inverse"``.
    A
        A symmetric operator: a dense array, a SciPy or JAX sparse matrix, a SciPy or lineax operator, an
        :class:`Operator`, or a function ``vectors -> vectors`` with ``dimension=``.
    key
        The source of all randomness.
    plan
        A plan made before by :func:`thalweg.spectral.plan` for the same ``f``; needed under jit and vmap.
    rtol, atol
        Draw more probes until the half-width of the 95 % interval is at most max(atol, rtol·|value|).
    budget
        With ``rtol`` or ``atol``: at most this many products (those of the plan apart, in multiples of one estimate's
        worth). Without one at most ten thousand estimates are drawn, and where those would not do no more than the
        first: the status says so, and ``message`` how many it would take.
    method
        ``"exact"`` factorises the matrix, in float64; ``"stochastic"`` estimates; ``"auto"`` takes whichever is
        predicted to be cheaper, and finds a preconditioner by itself where one helps.
    **options
        Those of :func:`thalweg.spectral.plan`.

    Returns
    -------
    Estimate
        ``value``, ``standard_error``, ``interval(0.95)``, ``products``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> A = np.diag(np.array([1.0, 4.0, 9.0]))
    >>> spectral_sum(jnp.sqrt, A, jax.random.key(0)).message
    'ok. Computed by a factorisation.'
    >>> result = spectral_sum(jnp.sqrt, A, jax.random.key(0), method="stochastic", probes=4, rtol=0.05)
    >>> round(float(result.value), 0), result.message
    (6.0, "ok. A factorisation would be cheaper: method='auto' uses it.")
    """
    f, target = named(f), target_of(rtol, atol)
    call = lambda: compute_sum(f, A, key, target, plan=plan, budget=budget, method=method, **options)
    return call_in_float64(A, key, plan, call)


def logdet(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate log det A = tr log A of a positive definite A.

    Parameters
    ----------
    A, key, **options
        See :func:`spectral_sum`. With ``preconditioner=PivotedCholesky(…)``, ``Nystrom(…)`` or ``Jacobi()`` the
        degree and the variance fall, often by orders of magnitude.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> result = logdet(2.0 * np.eye(3), jax.random.key(0), probes=4)
    >>> round(float(result.value / jnp.log(2.0)), 4)
    3.0
    """
    return spectral_sum(jnp.log, A, key, **options)


def trace_inverse(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate tr A⁻¹ of a positive definite A; options as for :func:`logdet`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> round(float(trace_inverse(2.0 * np.eye(3), jax.random.key(0), probes=4).value), 4)
    1.5
    """
    return spectral_sum(reciprocal, A, key, **options)


def entropy(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate the von Neumann entropy −tr A log A of a positive A, with 0 log 0 = 0 where it is factorised.

    An estimate needs A to be positive definite. Options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> round(float(entropy(np.eye(3) / 3, jax.random.key(0), probes=4).value), 4)
    1.0986
    """
    return spectral_sum(entropy_density, A, key, **options)


def trace_exp(A: Any, key: Key[Array, ""], *, time: float = 1.0, **options: Any) -> Estimate:
    """Estimate tr exp(tA), t = ``time``; options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> round(float(trace_exp(np.zeros((3, 3)), jax.random.key(0), probes=4).value), 4)
    3.0
    """
    time = arguments.real("time", time)
    return spectral_sum(jnp.exp if time == 1 else Exponential(time), A, key, **options)


def estrada(A: Any, key: Key[Array, ""], **options: Any) -> Estimate:
    """Estimate the Estrada index tr exp(A) of the graph with adjacency matrix A; options as for :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> triangle = np.ones((3, 3)) - np.eye(3)
    >>> round(float(estrada(triangle, jax.random.key(0), method="exact").value), 4)  # e² + 2/e
    8.1248
    """
    return spectral_sum(jnp.exp, A, key, **options)


def nuclear_norm(X: Any, key: Key[Array, ""], *, smoothing: float = 0.0, **options: Any) -> Estimate:
    """Estimate Σ_i √(σ_i² + ε), the nuclear norm of any real matrix X (smoothed by ε = ``smoothing``).

    √x is singular at zero: a rank-deficient X needs a positive ``smoothing``, as in section 5.1 of the paper.

    Parameters
    ----------
    X
        A dense or SciPy sparse matrix, rectangular or not; or a symmetric operator.
    key
        The source of all randomness.
    smoothing
        ε.
    **options
        See :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> round(float(nuclear_norm(2.0 * np.eye(3, 4), jax.random.key(0), probes=4).value), 4)
    6.0
    """
    return schatten_norm(X, key, p=1.0, smoothing=smoothing, **options)


def schatten_norm(X: Any, key: Key[Array, ""], *, p: float, smoothing: float = 0.0, **options: Any) -> Estimate:
    """Estimate the Schatten norm (Σ_i (σ_i² + ε)^(p/2))^(1/p) of any real matrix X.

    The sum under the root is estimated without bias. For p ≠ 1 the root is not linear: it biases the norm by the order
    of its squared relative standard error, and the standard error is carried through the root to first order.

    Parameters
    ----------
    X
        A dense or SciPy sparse matrix, rectangular or not; or a symmetric operator.
    key
        The source of all randomness.
    p
        Any positive number.
    smoothing
        ε; not needed for an even integer p.
    **options
        See :func:`spectral_sum`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> round(float(schatten_norm(2.0 * np.eye(3, 4), jax.random.key(0), p=2, probes=4).value), 4)  # √12
    3.4641
    """
    p, smoothing = arguments.real("p", p, above=0), arguments.real("smoothing", smoothing, least=0)
    key = arguments.random_key("key", key)
    target = target_of(options.pop("rtol", None), options.pop("atol", None))
    dimension, plan, interval = options.pop("dimension", None), options.get("plan"), options.get("interval")
    unit = 1.0 if plan is not None or interval is not None else _unit(X, smoothing)
    inner = smoothing / unit / unit
    if inner > 0 and plan is None:
        lower, upper = interval or (None, None)
        options["interval"] = (inner * (1 - 1e-3) if lower is None else lower, upper)

    def norm() -> Estimate:
        gram = gram_operator(X if unit == 1 else X / unit, inner, dimension)
        largest = _largest(gram, key) if 16 * p > SAFE_BITS and plan is None else 1.0
        size = unit * largest**0.5
        f = jnp.sqrt if p == 1 else Power(0.5 * p, largest)
        result = compute_sum(f, gram, key, target and _target_of_sum(target, p, size), **options)
        return result if p == 1 and unit == 1 else _root(result, p, size, unit)

    return call_in_float64(X, key, plan, norm)


def _target_of_sum(target: Target, p: float, size: Any) -> Target:
    """Carry what is wanted of the norm, size·(sum)^(1/p), back to the sum."""
    return lambda total: p * _rootable(total) ** (1 - 1 / p) / size * target(size * total ** (1 / p))


def _root(result: Estimate, p: float, size: Any, unit: float) -> Estimate:
    """Return the norm, size·(sum)^(1/p), with its error to first order."""
    total = jax.lax.stop_gradient(result.value)
    if p != 1 and not is_traced((total, result.standard_error)):
        _rootable(float(total), float(result.standard_error))
    # A zero matrix has a norm, and 0 among its subgradients; the root has none.
    norm = size * jnp.where(total == 0, 0.0, jnp.where(total == 0, 1.0, result.value) ** (1.0 / p))
    held = jax.lax.stop_gradient(norm)
    slope = jnp.where(total > 0, held / (p * total), size)
    error = add_stored_rounding(slope * result.standard_error, held, held.dtype)
    ends = (result.lower * unit * unit, result.upper * unit * unit)
    return eqx.tree_at(lambda e: (e.value, e.standard_error, e.lower, e.upper), result, (norm, error, *ends))


def _unit(X: Any, smoothing: float) -> float:
    """Return a power of two of the size of a matrix whose entries are so large or small that powers are not safe."""
    entries = X.data if scipy.sparse.issparse(X) else X
    if is_traced(entries) or not isinstance(entries, np.ndarray | jax.Array) or entries.dtype.kind not in "fV":
        return 1.0
    largest = max(float(np.max(np.abs(np.asarray(entries, np.float64)), initial=0.0)), smoothing**0.5)
    bits = np.log2(largest) if 0 < largest < np.inf else 0.0
    return float(np.exp2(np.round(bits))) if abs(bits) >= SAFE_BITS / 4 else 1.0


def _largest(gram: Operator, key: Key[Array, ""]) -> Any:
    """Return about the largest eigenvalue, held constant; 1 where it is zero."""
    if is_concrete(gram) and not is_traced(key):
        return float(find_spectrum(frozen(gram), None, key, positive=False).nodes[-1]) or 1.0
    largest = jnp.linalg.eigvalsh(frozen(gram).to_dense())[-1]
    return jnp.where(largest > 0, largest, 1.0)


def _rootable(total: float, error: float = 0.0) -> float:
    """Return a sum of powers, and refuse one no larger than its error, whose root to first order means nothing."""
    if total < 2 * error or total < 0:
        raise ValueError(
            f"the sum of the powers of the singular values, in units of the largest, came out as {total:.3g} with a "
            f"standard error of {error:.3g}: too little is known of it for its root. Use more probes, a smaller p, "
            "float64, or method='exact' where it fits."
        )
    return total

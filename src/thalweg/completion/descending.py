"""Four ways down the smoothed nuclear norm, a round of steps at a time.

GD takes exact gradients, SGD (Algorithm 1 of the spectral paper) estimated ones; SGD-DET estimates with one fixed
degree, which is biased. SVRG (Algorithm 2) corrects SGD by an exact gradient at the head of each round; both of its
gradients share keys, interval, coefficients and law, which change with the snapshot only.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from thalweg import arguments
from thalweg.completion.nuclear import GRADES, Factorised, Relaxed, Sampled
from thalweg.descent import FISTA, Constant, PolyakRuppert, Polynomial, Status, minimize
from thalweg.oracles import SVRG
from thalweg.spectral import InfiniteVarianceWarning

METHODS = ("gd", "sgd", "sgd-det", "svrg")

_MOST = GRADES**8
"""Room beyond which it is not for want of room that a round diverged."""

_PLACES = 2048
"""Of the tables of an estimate, at the least."""


@dataclass(frozen=True)
class Way:
    """How to go down.

    Examples
    --------
    >>> Way("sgd", law="theorem3", degree=15.0).round
    10
    """

    method: str = "svrg"
    """One of ``METHODS``."""
    step: float = 0.5
    """The step size, over 1/L; GD takes up to 2."""
    law: str = "optimal"
    """Of the degrees: see :func:`thalweg.spectral.plan`. SGD-DET has none."""
    degree: float | None = 15.0
    """The mean degree N, and the degree of SGD-DET; None: where variance times work is least."""
    probes: int = 64
    """M."""
    group: int = 1
    """How many of them share a degree; all of them do in Algorithms 1 and 2."""
    round: int = 10
    """Steps with one interval; of SVRG, T."""
    decay: float = np.inf
    """Steps after which those of SGD begin to fall as one over the root of their number."""
    restart: str = "mean"
    """Of SVRG, where the next snapshot is taken: at the mean of the steps, as in Algorithm 2, or at the "last"."""
    precision: str = "highest"
    """Of the products of an estimate on an accelerator: see :func:`thalweg.spectral.plan`."""
    deflated: bool = False
    """Whether estimates have the leading singular value apart, exactly: for ratings that are positive."""
    accelerated: bool = False
    """Whether GD has FISTA's momentum, for the length of a round; its step is then 1 at most."""


@dataclass(frozen=True)
class Path:
    """Where it ended, and after each round the seconds, what was watched, and the objective (an estimate, of SGD).

    Examples
    --------
    >>> Path(np.zeros((1, 1)), [0.0, 1.0], [2.0, 1.0], [5.0], 8.0, Status.STEPS_SPENT).arrival(1.5)
    1.0
    """

    theta: Any
    seconds: list[float]
    watched: list[float]
    values: list[float]
    products: float
    status: Status
    repeated: int = 0
    """Rounds made again because the spectrum had left the interval; they are on the clock."""

    def arrival(self, level: float) -> float:
        """Seconds until what was watched was first as small; infinite if never."""
        reached = np.flatnonzero(np.asarray(self.watched) <= level)
        return self.seconds[reached[0]] if reached.size else np.inf


def descend(
    problem: Relaxed,
    start: Float[Array, "d r"],
    way: Way,
    key: Key[Array, ""],
    *,
    rounds: int,
    seconds: float = np.inf,
    watch: Callable[[Array], float] | None = None,
    stop: Callable[[list[float], list[float]], bool] | None = None,
) -> Path:
    """Go down from a start, a round of steps at a time; what is watched is not on the clock.

    Parameters
    ----------
    problem
        What to minimise.
    start
        θ to start from.
    way
        The method and its settings.
    key
        Of probes and degrees.
    rounds, seconds
        The most of each.
    watch
        A number to be kept after each round, and before the first.
    stop
        ``stop(values, watched) -> bool`` after each round: whether it was the last.

    Examples
    --------
    >>> from thalweg.completion import Ratings
    >>> ratings = Ratings(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([3.0, 4.0, 4.0, 2.0]), None, (2, 3))
    >>> problem = Relaxed.of(ratings, low=0.0, high=5.0)
    >>> path = descend(problem, problem.known(), Way("gd", 1.5, round=5), jax.random.key(0), rounds=2)
    >>> bool(path.values[-1] < path.values[0])
    True
    """
    arguments.one_of("method", way.method, METHODS)
    oracle: Any = None
    theta, clock, products, interval = start, 0.0, 0.0, (np.inf, np.inf)
    times, watched, values = [0.0], [] if watch is None else [watch(start)], []
    status, done, more, repeated = Status.STEPS_SPENT, 0, 1.0, 0
    options: dict[str, Any] = {
        "degree": way.degree,
        "probes": way.probes,
        "group": way.group,
        "precision": way.precision,
        "deflated": way.deflated,
        "law": "fixed" if way.method == "sgd-det" else way.law,
    }
    with jax.default_matmul_precision("highest"):
        while done < rounds and clock < seconds:
            begun = time.perf_counter()
            key_of_plan, key_of_steps = jax.random.split(jax.random.fold_in(key, done))
            if way.method == "gd":
                oracle = Factorised(problem.gram, problem.misfit)
            elif (wanted := problem.interval(theta, more, way.deflated)) != interval:
                interval = wanted
                oracle = _planned(problem, theta, key_of_plan, interval, options)
                oracle = SVRG(oracle, way.round, restart=way.restart) if way.method == "svrg" else oracle
            result = minimize(
                oracle,
                theta,
                term=problem.box,
                step=_step(way, problem.smoothness, done),
                momentum=FISTA() if way.accelerated and way.method == "gd" else None,
                average=PolyakRuppert() if way.method == "svrg" and way.restart == "mean" else None,
                steps=way.round,
                key=key_of_steps,
                stride=way.round,
            )
            if (
                result.status is Status.DIVERGED
                and more < _MOST
                and problem.interval(theta, _MOST, way.deflated)[1] > interval[1]
            ):
                # The norm has outgrown its bound: from the same place again, with more room.
                more, repeated = more * GRADES**2, repeated + 1
                clock += time.perf_counter() - begun
                continue
            more, done = 1.0, done + 1
            theta = jax.block_until_ready(result.x)
            clock, products = clock + time.perf_counter() - begun, products + result.work
            times.append(clock)
            # Of SVRG and GD exact, though of where the round began, or where its last step did.
            exact = way.method == "svrg"
            values.append(float(result.state.oracle.anchor.full.value if exact else result.history.last["value"]))
            watched += [] if watch is None else [watch(theta)]
            if result.status in (Status.DIVERGED, Status.INTERRUPTED):
                status = result.status
                break
            if stop is not None and stop(values, watched):
                status = Status.CONVERGED
                break
    return Path(theta, times, watched, values, products, status, repeated)


def _planned(
    problem: Relaxed, theta: Array, key: Key[Array, ""], interval: tuple[float, float], options: dict
) -> Sampled:
    with warnings.catch_warnings():
        # Whoever asks for such a law wants to see what it does.
        warnings.simplefilter("ignore", InfiniteVarianceWarning)
        return _lengthened(problem.oracle(theta, key, interval=interval, slack=1.0, **options))


def _lengthened(oracle: Sampled) -> Sampled:
    """With tables as long as any that is expected, so that one program serves all intervals."""
    plan = oracle.plan
    more = max(0, _PLACES - len(plan.log_survival))
    longer = lambda table, value: jnp.pad(table, (0, more), constant_values=value)
    tables = plan.tables._replace(weights=longer(plan.tables.weights, 0), derivative=longer(plan.tables.derivative, 0))
    new = tables, longer(plan.log_survival, -jnp.inf), longer(plan.control, 0)
    return eqx.tree_at(lambda one: (one.plan.tables, one.plan.log_survival, one.plan.control), oracle, new)


def _step(way: Way, smoothness: float, done: int) -> Constant | Polynomial:
    size = way.step / smoothness
    if not way.method.startswith("sgd") or not np.isfinite(way.decay):
        return Constant(size)
    before = way.decay + done * way.round
    return Polynomial(size * (before / way.decay) ** -0.5, scale=before)

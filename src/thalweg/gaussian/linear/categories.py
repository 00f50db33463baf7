"""Linear models of several classes: P(class) = softmax(z), a linear predictor z for each class."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from thalweg.codec import storable
from thalweg.descent import History, Status, Tolerance, minimize
from thalweg.descent.steps import Move, StepRule, Taken
from thalweg.gaussian.divergence import GaussianKL, KLToNormal
from thalweg.gaussian.linear.fitting import FEW, Prior, wide_scales
from thalweg.gaussian.linear.observations import Observations, check_numbers, with_intercept
from thalweg.gaussian.linear.scales import loosely
from thalweg.gaussian.linear.search import Search
from thalweg.gaussian.linear.targets import Labels
from thalweg.gaussian.linear.weights import Frame
from thalweg.gaussian.posteriors import Full
from thalweg.gaussian.softmax import NODES, ExpectedSoftmax, contrasts, mean_chances
from thalweg.padding import padded, padded_size
from thalweg.threads import enough_threads

_SHORTEST, _LONGEST = 0.01, 4.0
_NARROW = 1e-8
_ROUNDS, _CLOSE = 3, 1.05
"""So often the prior is widened for weights that are larger than it allows for, unless by less than this factor."""
_EVENED = 2
"""So often leverages are found anew."""
_SHIFTS, _LITTLE = 20, 1e-4
"""So often predictions are shifted, unless by less than this."""
_ROWS, _COLUMNS = 256, 16
_FEW_NODES, _LONG, _CALM = 16, 4096, 0.25
"""So many nodes do for this many rows or more, if the linear predictors of none vary by more than this: mean chances
are then off by 5e-4 at most, as with all nodes where they vary by 1."""
_MANY = 256
"""So many weights are not padded: steps grow with their third power, and cost more than compiling."""


class _Damped(StepRule):
    """Steps that are halved after one that lengthened the natural gradient, and grow again after the others.

    The nodes make the bound and its gradient differ by a little, too much for a search that compares bounds.
    """

    initial: Array

    def __init__(self, initial: float) -> None:
        self.initial = jnp.asarray(initial)

    def init(self, x: Full) -> tuple:
        """The size to come, and the length of the last natural gradient."""
        return self.initial.astype(x.mean.dtype), jnp.asarray(jnp.inf, x.mean.dtype)

    def take(self, move: Move, state: tuple) -> Taken:
        """One step."""
        size, before = state
        taken = Taken(move.reach(size), size, state, 0)
        length = jnp.asarray(self.residual_norm(move, taken), size.dtype)
        later = jnp.clip(size * jnp.where(length > before, 0.5, 1.1), _SHORTEST, _LONGEST)
        return taken._replace(state=(later, length))


@storable
class Categories(NamedTuple):
    """The posterior of the weights of several classes; arrays are NumPy's.

    Examples
    --------
    >>> rows = Observations(np.ones((3, 1)), np.array([0, 1, 2]), np.ones(3))
    >>> fit_categories(rows, 3, Prior(1.0, intercept=None), Search(1e-6, 100)).chances(np.ones((1, 1))).round(3)
    array([[0.333, 0.333, 0.333]])
    """

    frame: Frame
    mean: np.ndarray
    """Of the weights in these coordinates: a row for each contrast of the classes."""
    covariance: np.ndarray
    """Over all of them."""
    levels: np.ndarray
    elbo: float
    steps: int
    status: Status
    history: History
    prior_scale: Any
    shift: np.ndarray | float = 0.0
    """What predictions of each class are shifted by where labels were told that were not seen."""

    def check_stored(self) -> None:
        """Refuse arrays that do not fit one another."""
        shape = len(self.levels) - 1, len(self.frame.scales)
        check_numbers("levels", self.levels, (len(self.levels),))
        check_numbers("means", self.mean, shape)
        check_numbers("covariances", self.covariance, (shape[0] * shape[1],) * 2)
        check_numbers("shifts", self.levels + self.shift, (len(self.levels),))

    def _basis(self) -> np.ndarray:
        """From weights to coefficients: all of a class after all of the one before."""
        return np.kron(contrasts(len(self.levels)) / np.sqrt(2), self.frame.back())

    def second_moments(self) -> np.ndarray:
        """m² + V of each feature's weights, averaged over the contrasts; 1 where the examples say nothing."""
        variances = np.diagonal(self.covariance).reshape(self.mean.shape)
        return np.mean(self.mean**2 + variances, axis=0)[self.frame.intercepts :]

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and covariance in the units of the data: those of a class after those before; classes add up to 0."""
        basis = self._basis()
        means = (basis @ self.mean.reshape(-1)).reshape(len(self.levels), -1)
        if self.frame.centre is not None:
            means[:, 0] += self.levels - np.mean(self.levels)
        return means.reshape(-1), basis @ self.covariance @ basis.T

    def nodes(self, columns: np.ndarray) -> int:
        """How many of them expectations at many rows need."""
        design = self.frame.design(columns) / np.sqrt(2)
        blocks = self.covariance.reshape(self.mean.shape * 2)
        variances = np.sum((design @ np.einsum("apaq->pq", blocks)) * design, axis=1)
        return NODES if np.max(variances) > _CALM else _few_nodes(columns, len(self.levels))

    def seen_from(self, frame: Frame, size: int) -> Full:
        """The same in the coordinates of a frame with other scales, with zeros for padded columns."""
        units = np.tile(self.frame.scales / frame.scales, len(self.mean))
        mean = units.reshape(self.mean.shape) * self.mean
        return _posterior(mean, units[:, None] * self.covariance * units, size)

    def leverages(self, columns: np.ndarray) -> np.ndarray:
        """p V[z − Σpz] of each class at rows, p being its chance: what an example has of the information on it."""
        design, basis = self.frame.design(columns) / np.sqrt(2), contrasts(len(self.levels))
        chances = self.chances(columns[:, self.frame.intercepts :], self.nodes(columns))
        size = design.shape[1]
        blocks = self.covariance.reshape(len(self.mean), size, len(self.mean), size)
        between = np.einsum("np,apbq,nq->nab", design, blocks, design, optimize=True)
        centred = basis - (chances @ basis)[:, None]
        return np.clip(chances * np.einsum("nka,nab,nkb->nk", centred, between, centred, optimize=True), 0, 1)

    def sample(self, count: int, X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the coefficients, and with each the linear predictors of rows: a class along the last axis."""
        shape = count, *self.mean.shape
        draws = rng.multivariate_normal(
            self.mean.reshape(-1), self.covariance, count, check_valid="ignore", method="eigh"
        )
        means, _ = self.coefficients()
        basis = self._basis()
        coefficients = means + (draws - self.mean.reshape(-1)) @ basis.T
        design = self.frame.design(with_intercept(X, self.frame.centre is not None)) / np.sqrt(2)
        latent = (
            self.levels + self.shift + (draws.reshape(shape) @ design.T).swapaxes(1, 2) @ contrasts(len(self.levels)).T
        )
        return coefficients.reshape(count, len(self.levels), -1), latent

    def chances(self, X: np.ndarray, nodes: int = NODES) -> np.ndarray:
        """The probabilities of the classes, averaged over the posterior."""
        columns = with_intercept(X, self.frame.centre is not None)
        with jax.enable_x64(True):
            design = self.frame.design(columns) / np.sqrt(2)
            oracle = _oracle(design, np.zeros((len(X), len(self.levels))), self.levels + self.shift, nodes)
            size = oracle.design.shape[1]
            return np.asarray(mean_chances(oracle, _posterior(self.mean, self.covariance, size)))[: len(X)]


def fit_categories(rows: Observations, classes: int, prior: Prior, search: Search) -> Categories:
    """The posterior given observations whose targets are 0, 1, …; prior scales are those of log-odds of two classes.

    Examples
    --------
    >>> rows = Observations(np.ones((2, 1)), np.array([0, 1]), np.ones(2))
    >>> fit_categories(rows, 2, Prior(1.0, intercept=None), Search(1e-6, 100)).status.success
    True
    """
    with jax.enable_x64(True), enough_threads(rows.columns.shape[1] * classes):
        if not isinstance(prior.scale, str):
            return _at_given_scale(rows, classes, prior, search)
        rough = loosely(search)._replace(max_iter=search.max_iter)
        wide = wide_scales(Labels(), rows._replace(targets=0 * rows.targets), prior)
        # All features together say no more a priori than as many as there are tens of examples.
        enough = np.sum(rows.weights) / (FEW * len(wide))
        scale = wide * min(1.0, np.sqrt(enough))
        found = _at_scale(rows, classes, prior, scale, rough)
        for _ in range(_ROUNDS if enough >= 1 else 0):
            wider = np.maximum(wide, scale * np.sqrt(found.second_moments()))
            if found.status is Status.INTERRUPTED or np.all(wider < _CLOSE * scale):
                break
            scale, steps = wider, found.steps
            found = _at_scale(rows, classes, prior, scale, rough, nearby=found)
            found = found._replace(steps=steps + found.steps)
        for how in [rough] * (_EVENED - 1) + [search] if found.status is Status.CONVERGED else []:
            steps, told = found.steps, _told(rows, found)
            found = _at_scale(rows, classes, prior, scale, how, told, found)
            found = found._replace(steps=steps + found.steps)
        return found if prior.intercept is None else _balanced(rows, found)


def _at_given_scale(rows: Observations, classes: int, prior: Prior, search: Search) -> Categories:
    """Of many rows by few nodes first, which say how many it takes."""
    many = _few_nodes(rows.columns, classes) < NODES
    found = _at_scale(rows, classes, prior, prior.scale, loosely(search) if many else search)
    if not many or found.status is Status.INTERRUPTED:
        return found
    again = _at_scale(rows, classes, prior, prior.scale, search, nearby=found)
    return again._replace(steps=found.steps + again.steps)


def _told(rows: Observations, found: Categories) -> np.ndarray:
    """What Jeffreys' prior says near a posterior: half as many labels of each class as an example has leverage on it.

    The likelihood alone, or with a wide prior, leads away from 0 where few examples tell of a weight, as of a column
    that is seldom anything but 0, and is then too sure of it (Kosmidis and Firth 2011).
    """
    return rows.weights[:, None] * found.leverages(rows.columns) / 2


def _balanced(rows: Observations, found: Categories) -> Categories:
    """Predictions that add up to the labels seen, and half a label of each class: told ones made rare ones frequent."""
    goal = np.bincount(rows.targets.astype(int), rows.weights, len(found.levels)) + 0.5
    nodes = found.nodes(rows.columns)
    for _ in range(_SHIFTS):
        chances = found.chances(rows.columns[:, 1:], nodes)
        off = np.log(goal / np.sum(goal)) - np.log(rows.weights @ chances / np.sum(rows.weights))
        found = found._replace(shift=found.shift + off)
        if np.max(np.abs(off)) < _LITTLE:
            break
    return found


def _at_scale(
    rows: Observations,
    classes: int,
    prior: Prior,
    scale: Any,
    search: Search,
    told: np.ndarray | float = 0.0,
    nearby: Categories | None = None,
) -> Categories:
    """The posterior for one prior scale, given what was seen and the labels that are ``told`` besides.

    ``nearby`` is that for another scale, or for other labels told, to start from.
    """
    intercept = prior.intercept is not None
    frame = Frame.of(rows, prior.scales(scale, rows.columns.shape[1] - intercept), intercept)
    totals = np.bincount(rows.targets.astype(int), rows.weights, classes) + 0.5
    levels = np.log(totals) if intercept else np.zeros(classes)
    nodes = _few_nodes(rows.columns, classes) if nearby is None else nearby.nodes(rows.columns)
    counts = rows.weights[:, None] * np.eye(classes)[rows.targets.astype(int)] + told
    oracle = _oracle(frame.design(rows.columns) / np.sqrt(2), counts, levels, nodes)
    size = oracle.design.shape[1]
    many = (classes - 1) * size
    standard = Full(jnp.zeros(many), jnp.eye(many), jnp.eye(many))
    # The start has the curvature of the model without features: with the prior's the first step could be too long.
    featureless = standard._replace(covariance=_NARROW * jnp.eye(many))
    start = featureless if nearby is None else nearby.seen_from(frame, size)
    bent = 2 * _first_gradient(oracle, start).covariance
    result = minimize(
        oracle,
        Full.from_precision(start.mean, jnp.eye(many) + bent),
        term=KLToNormal(standard),
        divergence=GaussianKL(),
        step=_Damped(1.0 if nearby is None else _LONGEST),
        tol=Tolerance(0, search.tol),
        steps=search.max_iter,
        progress=search.progress,
        engine="compiled",
    )
    if result.status is Status.INTERRUPTED and not result.steps:
        raise KeyboardInterrupt
    kept = slice(len(frame.scales))
    mean = np.asarray(result.x.mean).reshape(classes - 1, size)[:, kept]
    covariance = np.asarray(result.x.covariance).reshape(classes - 1, size, classes - 1, size)[:, kept, :, kept]
    covariance = covariance.reshape(mean.size, mean.size)
    elbo = -float(result.history.last["value"])
    return Categories(frame, mean, covariance, levels, elbo, result.steps, result.status, result.history, scale)


@eqx.filter_jit
def _first_gradient(oracle: ExpectedSoftmax, x: Full) -> Full:
    return oracle.full(x).gradient


def _few_nodes(columns: np.ndarray, classes: int) -> int:
    """Enough to tell contrasts apart; all where rows are so few that another program would take longer to compile."""
    return max(_FEW_NODES, 2 ** int(4 * classes - 5).bit_length()) if len(columns) >= _LONG else NODES


def _oracle(design: np.ndarray, counts: np.ndarray, levels: np.ndarray, nodes: int) -> ExpectedSoftmax:
    many = design.shape[1] * len(levels) > _MANY
    size = design.shape[1] if many else padded_size(design.shape[1], _COLUMNS)
    rows = lambda array: jnp.asarray(padded(array, padded_size(len(array), _ROWS)))
    return ExpectedSoftmax(rows(counts), rows(padded(design, size, axis=1)), jnp.asarray(levels), nodes)


def _posterior(mean: np.ndarray, covariance: np.ndarray, size: int) -> Full:
    """With zeros for padded columns."""
    classes, columns = mean.shape
    blocks: Any = covariance.reshape(classes, columns, classes, columns)
    blocks = padded(padded(blocks, size, axis=1), size, axis=3).reshape(classes * size, -1)
    return Full(jnp.asarray(padded(mean, size, axis=1).reshape(-1)), jnp.asarray(blocks), jnp.zeros_like(blocks))

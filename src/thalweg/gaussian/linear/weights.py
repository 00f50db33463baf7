"""The posterior N(m, V) over the weights of a linear predictor, and what follows from it.

Weights are counted in prior standard deviations, so that the prior is N(0, I), and the features are centred if there is
an intercept: :class:`Frame` holds these coordinates. V is a matrix, or, where there are more weights than examples,
V = I − RᵀR with a matrix R that has a row per example, and no matrix over pairs of weights is formed.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from thalweg.codec import storable
from thalweg.gaussian.linear.observations import Observations, check_numbers
from thalweg.gaussian.posteriors import Full

_ROUNDING = 1e-24
"""Centred columns with squares smaller than this, beside those of the columns, are rounding errors."""

_LEAST_FREEDOM = 1.0
"""Of Student's t distributions, however few the examples."""


@storable
@dataclass(frozen=True)
class Frame:
    """The coordinates of the weights: centre of the features (None without intercept), prior standard deviations.

    With an intercept the prior mean of the linear predictor is ``level`` where all features are at the centre.

    Examples
    --------
    >>> Frame(centre=np.array([2.0]), scales=np.array([10.0, 0.5])).design(np.array([[1.0, 4.0]]))
    array([[10.,  1.]])
    """

    centre: np.ndarray | None
    scales: np.ndarray
    level: float = 0.0

    @classmethod
    def of(cls, rows: Observations, scales: np.ndarray, intercept: bool, level: float = 0.0) -> "Frame":
        """Centred at the weighted mean of the rows, if there is an intercept."""
        if not intercept:
            return cls(None, scales)
        ones = rows.columns[:, 0]
        pull = rows.weights * ones
        return cls(pull @ rows.columns[:, 1:] / (pull @ ones), scales, level)

    def check_stored(self) -> None:
        """Refuse coordinates that do not fit one another."""
        check_numbers("scales", self.scales, (len(self.scales),))
        check_numbers("level", self.level)
        if self.centre is not None:
            check_numbers("centre", self.centre, (len(self.scales) - 1,))

    def spreads(self, rows: Observations) -> np.ndarray:
        """The part of each weight but the intercept's in the standard deviation of the linear predictor, a priori.

        It is 0 for a constant column, but for rounding.
        """
        squares = lambda columns: rows.weights @ columns[:, self.intercepts :] ** 2 / np.sum(rows.weights)
        centred, plain = squares(self.design(rows.columns)), squares(rows.columns * self.scales)
        return np.sqrt(np.where(centred > _ROUNDING * plain, centred, 0.0))

    def origin(self, columns: np.ndarray) -> np.ndarray:
        """The prior mean of the linear predictor of each row."""
        return self.level * columns[:, 0] if self.intercepts else np.zeros(len(columns))

    @property
    def intercepts(self) -> int:
        """1 with an intercept, 0 without: where the other weights begin."""
        return int(self.centre is not None)

    def design(self, columns: np.ndarray) -> np.ndarray:
        """The columns in these coordinates."""
        if self.centre is None:
            return columns * self.scales
        ones = columns[:, :1]
        return np.hstack([ones, columns[:, 1:] - ones * self.centre]) * self.scales

    def back(self) -> np.ndarray:
        """The matrix that makes coefficients, in the units of the data, of weights in these coordinates."""
        found = np.diag(self.scales)
        if self.centre is not None:
            found[0, 1:] = -self.centre * self.scales[1:]
        return found


@storable
@dataclass(frozen=True)
class LowRankSpread:
    """What the examples say of more weights than there are examples: V⁻¹ = I + GᵀG, V = I − RᵀR, R = L⁻¹G."""

    root: np.ndarray
    """G."""
    factor: np.ndarray
    """L, the lower Cholesky factor of I + GGᵀ."""

    @classmethod
    def of(cls, design: np.ndarray, sites: np.ndarray) -> "LowRankSpread":
        """With V⁻¹ = I + Aᵀdiag(γ̃)A, for a design A and sites γ̃."""
        root = np.sqrt(sites)[:, None] * design
        return cls(root, cholesky(np.eye(len(root)) + root @ root.T, lower=True))

    def explained(self, design: np.ndarray) -> np.ndarray:
        """The part ‖Rx‖² of the prior variance ‖x‖² that each row x loses."""
        return np.sum(solve_triangular(self.factor, self.root @ design.T, lower=True) ** 2, axis=0)

    def explained_of_each(self) -> np.ndarray:
        """The same of each weight by itself."""
        return np.sum(solve_triangular(self.factor, self.root, lower=True) ** 2, axis=0)


@storable
@dataclass(frozen=True)
class Weights:
    """The posterior N(mean, V) in the coordinates of a frame; V is that of ``spread``.

    Examples
    --------
    >>> spread = Full(np.ones(1), np.array([[0.25]]), np.array([[4.0]]))
    >>> Weights(Frame(None, np.array([2.0])), np.ones(1), spread).coefficients()
    (array([2.]), array([1.]))
    """

    frame: Frame
    mean: Any
    spread: Full | LowRankSpread
    freedom: float = np.inf
    """Degrees of freedom of Student's t distributions, where the variance of the noise has been learned."""
    inflation: float = 1.0
    """By how much the noise learned was too small, since the weights had followed it: V is larger by this factor."""
    likelihood: Any = None
    """With the parameters that belong to this posterior."""

    def check_stored(self) -> None:
        """Refuse a spread of other weights than there are."""
        count = len(self.frame.scales)
        check_numbers("means", self.mean, (count,))
        check_numbers("inflation", self.inflation)
        if isinstance(self.spread, Full):
            check_numbers("means", self.spread.mean, (count,))
            check_numbers("covariances", self.spread.covariance, (count, count))
            check_numbers("precisions", self.spread.precision, (count, count))
        else:
            check_numbers("root", self.spread.root, (len(self.spread.factor), count))
            check_numbers("factor", self.spread.factor, (len(self.spread.factor),) * 2)
        if not self.freedom > 0:
            raise ValueError(f"{self.freedom} degrees of freedom")

    def latent(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor."""
        design = self.frame.design(columns)
        if isinstance(self.spread, Full):
            variance = np.sum((design @ self.spread.covariance) * design, axis=1)
        else:
            variance = np.sum(design**2, axis=1) - self.spread.explained(design)
        return self.frame.origin(columns) + design @ self.mean, self.inflation * np.maximum(variance, 0)

    def _variances(self) -> np.ndarray:
        """The diagonal of V."""
        spread = self.spread
        return np.diagonal(spread.covariance) if isinstance(spread, Full) else 1 - spread.explained_of_each()

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations in the units of the data, the intercept's first if there is one."""
        scales = self.frame.scales
        means, deviations = scales * self.mean, scales * np.sqrt(self.inflation * np.maximum(self._variances(), 0))
        if self.frame.centre is not None:
            # The intercept is the linear predictor where all features are 0.
            (means[0],), (variance,) = self.latent(np.eye(1, len(scales)))
            deviations[0] = np.sqrt(variance)
        return means, deviations

    def second_moments(self) -> np.ndarray:
        """m² + V of all weights but the intercept's; 1 where the examples say what the prior does."""
        return (self.mean**2 + self._variances())[self.frame.intercepts :]

    def slope_in_scale(self) -> float:
        """How the bound changes with the logarithm of a factor common to the scales of all weights but the intercept's.

        At the best posterior only the prior's change counts: Σ(m² + V − 1).
        """
        return float(np.sum(self.second_moments() - 1))

    def covariance_of_coefficients(self) -> np.ndarray | None:
        """Over all pairs, the intercept first; None where it was not formed."""
        if not isinstance(self.spread, Full):
            return None
        back = self.frame.back()
        return self.inflation * (back @ self.spread.covariance @ back.T)

    def with_learned_noise(self, total: float) -> "Weights":
        """The same where the noise was learned too, from examples of this total weight.

        They have n − Σ(1 − V) degrees of freedom left, the sum being what the weights have learned from them. As many
        weights as examples, or more, could follow any noise; their prior keeps them from it, and half of n are left.
        """
        freedom = max(self._freedom(total), total / 2 if len(self.mean) >= total else 0.0)
        return replace(self, freedom=freedom, inflation=max(total / freedom, 1.0))

    def with_learned_dispersion(self, total: float) -> "Weights":
        """The same where a dispersion was learned too: tails as heavy as those of a noise learned from as many."""
        return replace(self, freedom=self._freedom(total))

    def _freedom(self, total: float) -> float:
        return max(total - float(np.sum(1 - self._variances())), _LEAST_FREEDOM)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the weights in these coordinates, one per row, and by what the variance learned is off in each."""
        if isinstance(self.spread, Full):
            zeros = np.zeros(len(self.mean))
            away = rng.multivariate_normal(zeros, self.spread.covariance, count, check_valid="ignore", method="eigh")
        else:  # V(ε + Gᵀη) has the covariance V(I + GᵀG)V = V.
            root, factor = self.spread.root, self.spread.factor
            away = rng.normal(size=(count, root.shape[1])) + rng.normal(size=(count, len(root))) @ root
            away -= cho_solve((factor, True), root @ away.T).T @ root
        known = np.isinf(self.freedom)
        off = np.ones(count) if known else self.freedom / rng.chisquare(self.freedom, size=count)
        off *= self.inflation
        return self.mean + np.sqrt(off)[:, None] * away, off

    def in_units_of_data(self, draws: np.ndarray) -> np.ndarray:
        """Rows of weights as coefficients, the intercept first if there is one."""
        found = draws * self.frame.scales
        if self.frame.centre is not None:
            found[:, 0] += self.frame.level - found[:, 1:] @ self.frame.centre
        return found

    def parts(self) -> tuple[tuple[float, "Weights"], ...]:
        """Itself, with all of the probability: a mixture has several."""
        return ((1.0, self),)

    def as_prior(self) -> Full:
        """The prior of the examples that come next."""
        if isinstance(self.spread, Full):
            return self.spread
        precision: Any = np.eye(len(self.mean)) + self.spread.root.T @ self.spread.root
        covariance: Any = np.linalg.inv(precision)
        return Full(self.mean, covariance, precision)

"""Kernel regression that streams."""

from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from thalweg import machines
from thalweg.arguments import number
from thalweg.machines import calibration
from thalweg.machines.losses import Loss
from thalweg.models._kernel_machine import KernelMachine

# Of a stream the targets' mean and scale change when they are so far from those of all rows seen, in standard
# deviations and as a factor: seldom, since all landmarks are then visited again.
_FAR, _FACTOR = 0.5, 2.0

_LOSSES: dict[str, type[Loss]] = {
    "squared": machines.SquaredLoss,
    "huber": machines.HuberLoss,
    "quantile": machines.QuantileLoss,
}


class KernelRegressor(RegressorMixin, KernelMachine):
    """Regression by a kernel machine that learns block by block, in memory for its features and one batch.

    It is to :class:`~thalweg.KernelClassifier` what scikit-learn's regressors are to its classifiers: parameters not
    listed here, attributes and methods are the same. Targets are centred and scaled inside. With the squared loss it is
    scikit-learn's ``KernelRidge(alpha)`` of the centred targets.

    Parameters
    ----------
    kernel, metric, alpha, method, max_features, max_iter, warm_start, random_state, verbose
        As in :class:`~thalweg.KernelClassifier`.
    bandwidth
        The lengthscale, in median distances. "auto" searches for it as in :class:`~thalweg.KernelClassifier`.
    loss
        "squared", "huber" or "quantile" (the median), or an object that says more, in units of the targets' standard
        deviation (for Huber's loss that of their bulk, by the median deviation, whatever outliers there are):
        :class:`HuberLoss(0.5) <thalweg.machines.HuberLoss>` takes residuals up to a half of it as squares,
        :class:`QuantileLoss(0.9) <thalweg.machines.QuantileLoss>` predicts the 90 % quantile.

    Attributes
    ----------
    n_features_in_, feature_names_in_, kernel_, alpha_, feature_scales_, n_iter_, n_features_used_, history_
        As in :class:`~thalweg.KernelClassifier`; the held-out score is the root of the mean squared error.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import KernelRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> model = KernelRegressor().fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.02)
    True
    """

    _true_tags = ("input_tags.sparse", "target_tags.multi_output")
    _plain_bandwidth = 1.0
    _target_mean: np.ndarray
    _target_moments: tuple[float, np.ndarray, np.ndarray]
    _parameter_constraints: ClassVar[dict[str, list]] = {"loss": [StrOptions(set(_LOSSES)), Loss]}

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelRegressor":
        """Learn from more rows, each seen once; the first call decides on the kernel, its units and the ridge.

        It should have 80 rows or more of the kind that will come, better 2,000: what it says of the features stays.
        The targets' mean and scale follow those of all rows seen.

        Parameters
        ----------
        X, y, sample_weight
            As in ``fit``.
        """
        return self._learn(machines.learn, X, y, sample_weight, None, anew=False)

    def predict(self, X: Any) -> np.ndarray:
        """The function's values; a column for each target if there are several."""
        return self._in_units_of_targets(self._values(X))

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends between which new targets lie with a probability of ``level``: conformal.

        They are as far from the prediction as rows that ``fit`` left out were, on either side, and as wide everywhere;
        which loss the function has, and whether it is any good, changes the width but not the share within.

        Parameters
        ----------
        X
            Rows.
        level
            Between 0 and 1; near 1 it takes many rows.

        Examples
        --------
        >>> import numpy as np
        >>> from thalweg import KernelRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 6, size=(200, 1))
        >>> model = KernelRegressor(random_state=0).fit(X, np.sin(X[:, 0]) + rng.normal(size=200))
        >>> low, high = model.predict_interval([[3.0]], level=0.9)
        >>> bool(2.5 < high[0] - low[0] < 4.5)
        True
        """
        number("level", level, above=0, below=1)
        check_is_fitted(self)
        left_out = self._machine.residuals
        if left_out is None:
            raise ValueError(
                "intervals need rows left out to judge by: a fit by the default method with ten rows or more that was "
                "not interrupted, no stream and no partial_fit after it"
            )
        # What was chosen by these rows makes them look easier than new ones are (Akaike, 1974).
        left_out = np.exp(self._machine.chosen / len(left_out)) * left_out
        found, offsets = self._values(X), calibration.conformal_offsets(left_out, float(level))
        low, high = (self._in_units_of_targets(found + offset) for offset in offsets)
        return low, high

    def _in_units_of_targets(self, values: np.ndarray) -> np.ndarray:
        targets = values * self._target_scale + self._target_mean
        return targets[:, 0] if self._flat else targets

    def _loss(self) -> Loss:
        return self.loss if isinstance(self.loss, Loss) else _LOSSES[self.loss]()

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any, streams: bool) -> dict:
        y = np.asarray(y, dtype=np.float64)
        columns = y[:, None] if y.ndim == 1 else y
        if not first and columns.shape[1] != len(self._target_mean):
            raise ValueError(f"y must have {len(self._target_mean)} columns as before, found {columns.shape[1]}")
        with np.errstate(over="ignore", invalid="ignore"):
            total, mean = float(np.sum(weights)), np.average(columns, axis=0, weights=weights)
            variance = np.average((columns - mean) ** 2, axis=0, weights=weights)
            if not first:
                total, mean, variance = _merged(self._target_moments, (total, mean, variance))
        lost = (variance == 0) & (np.ptp(columns[weights > 0], axis=0) > 0)
        if np.any(lost | ~np.isfinite(variance)):
            raise ValueError(f"y must have a variance that float64 holds, found values up to {np.max(np.abs(y)):g}")
        self._target_moments = total, mean, variance
        spread = np.sqrt(variance)
        if first:
            self._flat = y.ndim == 1
            plain = np.stack([0 * mean, 1 + 0 * spread])
            robust = isinstance(self._loss(), machines.HuberLoss)
            self._target_core = _core(columns, weights, mean, spread) if robust else plain
        mean = mean + self._target_core[0] * spread
        scale = np.where(spread > 0, spread * self._target_core[1], 1.0)
        if first:
            self._target_mean, self._target_scale = mean, scale
        else:
            self._follow(mean, spread, scale)
        targets = (columns - self._target_mean) / self._target_scale
        return {"targets": targets, "scale": self._target_scale, "weights": weights}

    def _follow(self, mean: np.ndarray, spread: np.ndarray, scale: np.ndarray) -> None:
        """Go over to the mean and the scale of all rows seen where those in use are far from them."""
        old_mean, old_scale = self._target_mean, self._target_scale
        # Rounding alone makes a spread of targets that are all the same.
        there = spread > 1e-12 * np.abs(mean)
        other_scale = np.maximum(scale / old_scale, old_scale / scale) > _FACTOR
        if not np.any(there & (other_scale | (np.abs(mean - old_mean) > _FAR * spread))):
            return
        scale = np.where(there, scale, old_scale)
        self._machine = self._machine.with_targets(old_scale / scale, (old_mean - mean) / scale)
        self._target_mean, self._target_scale = mean, scale


def _core(columns: np.ndarray, weights: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How far the median is from the mean, and the standard deviation without outliers, both in standard deviations.

    The latter is that of normal targets with the same median deviation.
    """
    middle = _median(columns, weights)
    bulk = _median(np.abs(columns - middle), weights) / ndtri(0.75)
    there, spread = bulk > 0, np.where(spread > 0, spread, 1.0)
    return np.stack([np.where(there, middle - mean, 0.0) / spread, np.where(there, bulk / spread, 1.0)])


def _median(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The median of each column, where a weight of 2 is a row twice."""
    order = np.argsort(columns, axis=0)
    below = np.cumsum(weights[order], axis=0)
    either = [np.argmax(below >= below[-1] / 2, axis=0), np.argmax(below > below[-1] / 2, axis=0)]
    return np.mean(np.take_along_axis(np.take_along_axis(columns, order, axis=0), np.stack(either), axis=0), axis=0)


def _merged(one: tuple[float, Any, Any], other: tuple[float, Any, Any]) -> tuple[float, Any, Any]:
    """The weight, the mean and the variance of two samples in one."""
    total = one[0] + other[0]
    part, apart = other[0] / total, other[1] - one[1]
    variance = (1 - part) * one[2] + part * other[2] + part * (1 - part) * apart**2
    return total, one[1] + part * apart, variance

"""Kernel regression that streams."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from thalweg.arguments import number
from thalweg.kernels import Kernel
from thalweg.machines.rows import Rows
from thalweg.models._kernel_machine import KernelMachine
from thalweg.oracles import losses

_LOSSES = ("squared", "huber", "quantile")


class KernelRegressor(RegressorMixin, KernelMachine):
    """Regression by a kernel machine that learns block by block, in memory for its features and one batch.

    It is to :class:`~thalweg.KernelClassifier` what scikit-learn's regressors are to its classifiers: parameters not
    listed here, attributes and methods are the same. Targets are centred and scaled inside. With the squared loss, up
    to ``block_size`` rows give scikit-learn's ``KernelRidge(alpha)`` of the centred targets.

    Parameters
    ----------
    kernel, alpha, method, features, block_size, max_features, batch_size, step, precondition, periods
        As in :class:`~thalweg.KernelClassifier`.
    keep_frequencies, max_iter, tol, early_stopping, validation_fraction, warm_start, random_state, verbose
        As in :class:`~thalweg.KernelClassifier`.
    bandwidth
        The lengthscale, in median distances. "auto" searches for it on a held-out slice; with fewer than 2,000
        rows it is 1.
    loss
        "squared", "huber" or "quantile".
    width
        Of "huber": residuals up to this many standard deviations of the targets count as squares.
    quantile
        Of "quantile": which one to predict.

    Attributes
    ----------
    n_features_in_, feature_names_in_, kernel_, alpha_, n_iter_, n_features_used_, history_
        As in :class:`~thalweg.KernelClassifier`; the held-out score is the root of the mean squared error.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import KernelRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = KernelRegressor().fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[np.pi / 2]])[0] - 1) < 0.01)
    True
    """

    _plain_multiplier = 1.0

    def __init__(
        self,
        kernel: Kernel | type[Kernel] | None = None,
        *,
        bandwidth: float | str = "auto",
        loss: str = "squared",
        width: float = 1.35,
        quantile: float = 0.5,
        alpha: float | str = "auto",
        method: str = "auto",
        features: str = "auto",
        block_size: int = 2048,
        max_features: int = 65_536,
        batch_size: int | None = None,
        step: Any = None,
        precondition: bool = True,
        periods: tuple[int, int] = (1, 1),
        keep_frequencies: bool = False,
        max_iter: int | None = None,
        tol: float = 1e-4,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.loss = loss
        self.width = width
        self.quantile = quantile
        self.alpha = alpha
        self.method = method
        self.features = features
        self.block_size = block_size
        self.max_features = max_features
        self.batch_size = batch_size
        self.step = step
        self.precondition = precondition
        self.periods = periods
        self.keep_frequencies = keep_frequencies
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(  # type: ignore[override]
        self, X: Any, y: Any, sample_weight: Any = None
    ) -> "KernelRegressor":
        """Learn from more rows, each seen once; the first call decides on the kernel, the ridge and the targets' scale.

        Parameters
        ----------
        X, y, sample_weight
            As in ``fit``.
        """
        self._learn_more(X, y, sample_weight, None)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The function's values; a column for each target if there are several."""
        found = self._values(X) * self._target_scale + self._target_mean
        return found[:, 0] if self._flat else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _loss(self) -> losses.Loss:
        match self.loss:
            case "huber":
                return losses.Huber(self.width)
            case "quantile":
                return losses.Quantile(self.quantile)
            case _:
                return losses.Squared()

    def _targets(
        self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any
    ) -> tuple[np.ndarray, np.ndarray | None, int]:
        if not isinstance(self.loss, str) or self.loss not in _LOSSES:
            raise ValueError(f"loss must be one of {', '.join(map(repr, _LOSSES))}, found {self.loss!r}")
        number("width", self.width, above=0)
        number("quantile", self.quantile, above=0, below=1)
        try:
            y = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must hold numbers: {error}") from None
        columns = y[:, None] if y.ndim == 1 else y
        if first:
            self._flat = y.ndim == 1
            with np.errstate(over="ignore", invalid="ignore"):
                self._target_mean = np.average(columns, axis=0, weights=weights)
                spread = np.sqrt(np.average((columns - self._target_mean) ** 2, axis=0, weights=weights))
            if not np.all(np.isfinite(spread)):
                raise ValueError(f"y must have a finite variance, found values up to {np.max(np.abs(columns)):g}")
            self._target_scale = np.where(spread > 0, spread, 1.0)
        elif columns.shape[1] != len(self._target_mean):
            raise ValueError(f"y must have {len(self._target_mean)} columns as before, found {columns.shape[1]}")
        return (columns - self._target_mean) / self._target_scale, None, columns.shape[1]

    def _misses(self, found: np.ndarray, rows: Rows) -> float:
        """The root of the mean squared error, in units of the targets."""
        errors = (found - rows.targets) * self._target_scale
        return float(np.sqrt(np.average(np.sum(errors**2, axis=1), weights=rows.weights)))

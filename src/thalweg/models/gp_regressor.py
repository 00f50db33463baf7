"""Gaussian process regression."""

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from thalweg import arguments, processes
from thalweg.descent import Status
from thalweg.kernels import Kernel, kernel_or_class
from thalweg.models._common import Storable, settings_of, unharmed
from thalweg.models._inputs import check_sizes, row_numbers, row_weights, validated

ENOUGH_STEPS = 25
"""Steps after which a search that goes on gains little, so that ending it needs no warning."""


@dataclass(repr=False, eq=False)
class GPRegressor(RegressorMixin, MultiOutputMixin, Storable):
    """Gaussian process regression: a smooth function through noisy values, and how far it may be off.

    Called without arguments it takes features in any units: the kernel has a lengthscale for each feature, starts from
    their spread, and is the Matérn or Gaussian one, or the sum of two, that makes the data most probable; the noise is
    learned with it, and the mean is a constant that is found too.

    Parameters
    ----------
    kernel
        A kernel from :mod:`thalweg.kernels` to start from, sums and products included, or a name such as "matern32" of
        one with a lengthscale for each feature. By default the most probable of a Gaussian and three Matérn ones, and
        a second term where the data pay for its parameters.
    noise
        The variance of the noise in y. Learned by default.
    alpha
        Variance of noise that is known, beside ``noise``: a number, which new observations have too, or one for each
        row, which they have not.
    mean
        What the function returns to far from the rows: "constant" (default) and "linear", whose coefficients are found
        and their uncertainty counted, "zero", or a function of X that is subtracted from y (and makes ``save`` refuse).
    method
        "exact": one Cholesky factorisation of the n × n covariance per step, in float64. "iterative": parameters from
        a subset of the rows, and the posterior by conjugate gradients that never store the matrix; variances from
        samples. "grid": up to three features, a stationary kernel interpolated from a regular grid, at a cost that
        hardly depends on the number of rows; variances from samples. Few rows of two or three features are left to the
        exact method, which is the faster one. "auto" takes the grid for one feature and more than 12,000 rows where one
        that is fine enough can be had, else the exact method up to 12,000 rows on a CPU, and on a GPU while its memory
        lasts.
    learn
        Whether to maximise the marginal likelihood over the kernel's parameters and the noise.
    restarts
        How many more starting points to learn the best kernel from, on the first few hundred rows.
    max_iter
        The most steps of a search.
    random_state
        Seeds the order of the rows, restarts and samples.
    verbose
        Whether to show how searches go on.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel, in the units of the data, of several targets in their standard deviations; where several are
        averaged, the one that makes the rows most probable.
    noise_ : float
        The variance of the noise, as the kernel's.
    log_marginal_likelihood_ : float
        Of all rows.
    log_marginal_likelihood_error_ : float
        Its standard error: 0 if the fit was exact.
    method_ : str
        The method that was used.
    n_iter_ : int
        How often the marginal likelihood was evaluated.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import GPRegressor
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    >>> model = GPRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict([[3.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3.0)) < 0.1), bool(std[1] > 3 * std[0])
    (True, True)
    """

    _parameter_constraints: ClassVar[dict] = {
        "noise": [Interval(Real, 0, None, closed="left"), None],
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "mean": [StrOptions(set(processes.RegressorSettings.means)), callable],
        "method": [StrOptions(set(processes.RegressorSettings.methods))],
    }

    kernel: Kernel | str | None = None
    _: KW_ONLY
    noise: float | None = None
    alpha: Any = 0.0
    mean: str | Callable[[np.ndarray], np.ndarray] = "constant"
    method: str = "auto"
    learn: bool = True
    restarts: int = 1
    max_iter: int = 100
    random_state: Any = None
    verbose: bool = False

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GPRegressor":
        """Find the kernel and the noise if ``learn``, and the posterior.

        Parameters
        ----------
        X
            Rows of features.
        y
            Numbers, or rows of several, which share the kernel and the noise, counted in each one's standard deviation
            unless a kernel, noise or alpha is given.
        sample_weight
            Weights of the rows: the variance of a row's noise is divided by it. A row of weight 0 does not count. What
            is predicted of new observations, and ``noise_``, is for the weight 1.
        """
        with unharmed(self):
            kernel = None if self.kernel is None else kernel_or_class(self.kernel)
            X, y = validated(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
            y = np.asarray(y, np.float64)
            self._check(kernel, X, y)
            weights, known = row_weights(sample_weight, X), row_numbers("alpha", self.alpha, len(X), least=0)
            self._middle_weight = float(np.median(weights[weights > 0]))  # so that their unit does not matter
            given = self.noise is not None or not self.learn
            found = processes.fit_regressor(
                X,
                self._standardised(X, y, kernel),
                self._settings(),
                kernel,
                float(self.noise or 0.0) / self._middle_weight if given else None,
                known / self._middle_weight,
                weights / self._middle_weight,
                seed=self._seed(),
            )
            self._posterior = found.posterior
            self._known_of_all = float(self.alpha) if np.ndim(self.alpha) == 0 else 0.0
            self.kernel_ = found.posterior.kernel
            self.noise_ = found.posterior.noise * self._middle_weight
            self.log_marginal_likelihood_ = found.log_marginal_likelihood - found.rows * float(
                np.sum(np.log(self._units))
            )
            self.log_marginal_likelihood_error_ = found.error
            self.method_ = found.method
            self.n_iter_ = found.steps
            self._warn_if_unfinished(found)
            if self.learn and not np.any(np.ptp(y[weights > 0], axis=0)):
                message = "y does not vary: rows tell nothing of its scale, and standard deviations are next to 0"
                warnings.warn(message, UserWarning, stacklevel=3)
        return self

    def _check(self, kernel: Kernel | type[Kernel] | None, X: np.ndarray, y: np.ndarray) -> None:
        if kernel is None and not self.learn:
            raise ValueError("learn=False needs a kernel, found kernel=None")
        if not self.learn and self.noise is None and not np.any(self.alpha):
            raise ValueError("learn=False needs noise or alpha, found noise=None and alpha=0")
        for name, array in (("X", X), ("y", y)):
            check_sizes(name, array)

    def _standardised(self, X: np.ndarray, y: np.ndarray, kernel: Kernel | type[Kernel] | None) -> np.ndarray:
        """Return targets as columns, less an offset, and in units of their own if there are several."""
        self._single = y.ndim == 1
        targets = y[:, None] if self._single else y
        self._subtracted = self.mean if callable(self.mean) else None
        # Most digits of y may be its level, which a mean would find at the end of long sums only.
        self._level = np.median(targets, axis=0) if self.mean in ("constant", "linear") else np.zeros(targets.shape[1])
        free = self.learn and self.noise is None and not np.any(self.alpha) and not isinstance(kernel, Kernel)
        self._units = _units(targets) if free and targets.shape[1] > 1 else np.ones(targets.shape[1])
        return (targets - self._offset(X)) / self._units

    def _settings(self) -> processes.RegressorSettings:
        mean = self.mean if isinstance(self.mean, str) else "zero"
        return settings_of(processes.RegressorSettings, self, mean=mean)

    def _warn_if_unfinished(self, found: processes.Regression) -> None:
        """Warn of what a fit could not reach; an interrupt is warned of by its run."""
        if found.status is Status.INTERRUPTED:
            return
        message = None
        if not found.solved:
            message = (
                f"a solve ended with a residual of {found.posterior.residual:.2g}, above its tolerance: predictions "
                "may be off by about as much of their deviations. Raise noise, or take fewer rows and method='exact'"
            )
        elif self.learn and found.status is Status.STEPS_SPENT and self.max_iter < ENOUGH_STEPS:
            message = f"max_iter={self.max_iter} ended the search for the kernel before it had settled: raise it"
        elif found.posterior.coarse:
            message = (
                f"the finest grid that can be had is too coarse for {self.kernel_}: the function found is smoother "
                "than that. Take method='iterative', or fewer rows and method='exact'"
            )
        if message is not None:
            warnings.warn(message, ConvergenceWarning, stacklevel=5)

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of y at new rows, with its standard deviation or covariance, noise included, if asked for.

        Of several targets each has its own, in a last axis. A covariance needs the exact method.
        """
        X = self._checked_rows(X, dtype=np.float64)
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True")
        mean, spread = self._posterior.predict(X, full=return_cov)
        if return_cov:
            return self._means(mean, X), self._spreads(spread + self._observation_noise * np.eye(len(X)))
        deviation = self._spreads(np.sqrt(spread + self._observation_noise), power=1)
        return (self._means(mean, X), deviation) if return_std else self._means(mean, X)

    def latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the function itself, without noise.

        They take the smoothness of a kernel that was chosen for known: of functions without a derivative that were
        taken for smoother ones, intervals of 95 % held 85 % (``kernel="matern12"``: 95 %).
        """
        X = self._checked_rows(X, dtype=np.float64)
        mean, variance = self._posterior.predict(X)
        return self._means(mean, X), self._spreads(variance)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Functions drawn from the posterior at some rows, without noise, one in each (last) column.

        The exact method draws any number; the other two keep the 64 that their variances are of.
        """
        X = self._checked_rows(X, dtype=np.float64)
        n_samples = arguments.whole("n_samples", n_samples)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        drawn = self._posterior.sample(X, n_samples, rng) * self._units[:, None] + self._offset(X)[:, :, None]
        return drawn[:, 0] if self._single else drawn

    def _means(self, mean: np.ndarray, X: np.ndarray) -> np.ndarray:
        mean = mean * self._units + self._offset(X)
        return mean[:, 0] if self._single else mean

    def _spreads(self, spread: np.ndarray, power: int = 2) -> np.ndarray:
        return spread if self._single else spread[..., None] * self._units**power

    @property
    def _observation_noise(self) -> float:
        """The variance of a new observation, of weight 1, around the function: what is known of all is known of it."""
        return self._posterior.observation_noise * self._middle_weight + self._known_of_all

    def _offset(self, X: np.ndarray) -> np.ndarray:
        """What was subtracted from y: the level of each column, or the user's mean function as a column."""
        if self._subtracted is None:
            return np.broadcast_to(self._level, (len(X), len(self._level)))
        found = np.asarray(self._subtracted(X), np.float64)
        if found.shape != (len(X),) or not np.all(np.isfinite(found)):
            raise ValueError(f"mean must return a finite number per row, ({len(X)},), found shape {found.shape}")
        return found[:, None]


def _units(targets: np.ndarray) -> np.ndarray:
    """Standard deviations of the columns, next to nothing for those that are constant up to rounding."""
    found, least = np.std(targets - targets[:1], axis=0), 1e-12 * np.max(np.abs(targets), axis=0)
    return np.where(found > least, found, np.where(least > 0, least, 1e-12))

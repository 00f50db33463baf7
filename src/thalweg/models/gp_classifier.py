"""Gaussian process classification by PG-SVI."""

import importlib.util
import warnings
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import logit
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets

from thalweg import processes
from thalweg.descent import Status
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import BernoulliLogit, BernoulliProbit
from thalweg.kernels import Kernel
from thalweg.models._common import Storable, settings_of, unharmed
from thalweg.models._inputs import example_weights, validated, warn_of_little_weight

if importlib.util.find_spec("sklearn.callback"):
    importlib.import_module("sklearn.callback")  # or scikit-learn loads its sixty modules within the first fit

_LINKS = {"logit": BernoulliLogit, "probit": BernoulliProbit}

LEAST_GAIN = 1e-3
"""The share of the bound of tossing a coin that a kernel must gain to say anything: less is within the tolerance of a
search."""


@dataclass(repr=False, eq=False)
class GPClassifier(ClassifierMixin, Storable):
    """Gaussian process classification with a Gaussian posterior, found by KL-proximal steps (PG-SVI).

    The posterior over the latent values is N(m, V) with V⁻¹ = K⁻¹ + diag(γ̃); each step is the exact minimiser of
    the bound with the likelihood made linear, which is a natural-gradient step: eq. (83) of Khan et al. (2016).
    One step costs a Cholesky factorisation of an n × n matrix: a few thousand rows in minutes on a laptop.

    Parameters
    ----------
    kernel
        A kernel from :mod:`thalweg.kernels`, in the units of the features; or a class of them or its name ("rbf",
        "matern32", …), by default :class:`~thalweg.kernels.Gaussian`. Of a class the lengthscale is the median distance
        between rows, with the features as they are or standardised, whichever has the higher bound, and the variance
        is 10; if they are learned, lengthscales of features keep their proportions, unless one for each gains more than
        it would by chance.
    likelihood
        "logit" (default), "probit", or a :class:`~thalweg.gaussian.Likelihood` of labels 0 and 1.
    jitter
        Added to the diagonal of the covariance of the training rows. Nothing is inverted that would need it: it models
        labels that do not follow the function.
    learn
        Whether to maximise the bound over the kernel's parameters as well; otherwise the kernel is used as given.
    batch_size
        Rows per step. By default all, with exact gradients, which is also the fastest: a step's cost hardly depends on
        it. With a number, the stochastic method of the paper.
    step
        For batches: the first β is this times batch_size/n, and it decays. Steps with all rows choose their own length.
    tol
        Stop when the natural gradient is this short; about half its square is what is left to gain, in nats.
    max_iter
        The most steps with all rows; with batches, passes over the data.
    random_state
        Seeds batches, and the rows that starting points are compared on.
    verbose
        Show a progress bar: the rows, the start, its bound and its kernel.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn.
    elbo_ : float
        The bound on the log marginal likelihood, in nats; with more than two classes the sum over one-vs-rest problems.
    log_marginal_likelihood_bound_ : float
        The same.
    kernel_ : Kernel or list of Kernel
        The kernel used, in the units of the features; one for each class if there are more than two.
    n_iter_ : int
        Steps taken; the most of any class.
    history_ : History or list of History
        Value, residual and step size over the steps of the last inference.

    Notes
    -----
    More than two classes are handled one against the rest, each with its own process and kernel, and the probabilities
    are scaled to sum to one. That is not the posterior of a multi-class model: with classes that overlap, treat the
    probabilities as scores.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import GPClassifier
    >>> X = np.linspace(-3, 3, 20)[:, None]
    >>> model = GPClassifier(learn=False).fit(X, X[:, 0] > 0)
    >>> model.predict([[-1.0], [2.0]])
    array([False,  True])
    """

    _parameter_constraints: ClassVar[dict] = {
        "likelihood": [StrOptions(set(_LINKS)), Likelihood],
        "jitter": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "step": [Interval(Real, 0, None, closed="neither")],
    }

    kernel: Kernel | type[Kernel] | str | None = None
    _: KW_ONLY
    likelihood: str | Likelihood = "logit"
    jitter: float = 1e-6
    learn: bool = True
    batch_size: int | None = None
    step: float = 1.0
    tol: float = 1e-2
    max_iter: int = 200
    random_state: Any = None
    verbose: bool = False

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GPClassifier":
        """Find the posterior, and the kernel if ``learn``.

        Parameters
        ----------
        X
            Rows of features.
        y
            Labels, of two classes or more.
        sample_weight
            Weights of the rows in the likelihood; a weight of 2 is the row twice. Copies are no new evidence for the
            kernel: it is learned from each row counted once, unless equal rows differ in their labels about as often as
            independent labels would.
        """
        with unharmed(self):
            X, y = validated(self, X, y, dtype=np.float64)
            check_classification_targets(y)
            weights = example_weights(sample_weight, X)
            warn_of_little_weight(weights)
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError(f"y must hold at least two classes, found one class: {self.classes_.tolist()[0]!r}")
            totals = np.bincount(labels, weights)
            if not np.all(totals > 0):
                weightless = self.classes_.tolist()[np.argmin(totals)]
                raise ValueError(f"sample_weight must leave some weight to every class, found none for {weightless!r}")
            seed, settings = self._seed(), self._settings()
            positives = range(1, 2) if len(self.classes_) == 2 else range(len(self.classes_))
            columns = [(labels == positive).astype(float) for positive in positives]
            rest = settings, self.kernel, weights, seed
            self._processes = [processes.fit_classifier(X, column, *rest) for column in columns]
            self._likelihood = settings.likelihood
            self._warn_if_unfinished(len(np.unique(X[weights > 0], axis=0)))
            self._warn_if_nothing_learned(float(np.sum(weights)))
            self.elbo_ = self.log_marginal_likelihood_bound_ = float(sum(fitted.bound for fitted in self._processes))
            self.n_iter_ = max(fitted.steps for fitted in self._processes)
            single = len(self._processes) == 1
            self.kernel_ = self._processes[0].kernel if single else [fitted.kernel for fitted in self._processes]
            self.history_ = self._processes[0].history if single else [fitted.history for fitted in self._processes]
        return self

    def latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the latent function; a column for each class if there are more than two."""
        X = self._checked_rows(X, dtype=np.float64)
        found = [fitted.predict(X) for fitted in self._processes]
        mean, variance = (np.stack(column, axis=1) for column in zip(*found, strict=True))
        return (mean[:, 0], variance[:, 0]) if len(found) == 1 else (mean, variance)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the predicted probability; of each class against the rest if there are more than two."""
        return logit(self._positive(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior."""
        positive = self._positive(X)
        if positive.ndim == 1:
            return np.stack([1 - positive, positive], axis=1)
        return positive / positive.sum(axis=1, keepdims=True)

    def _positive(self, X: Any) -> np.ndarray:
        """The probability of the second class, or of each class against the rest."""
        mean, variance = self.latent(X)
        return processes.probabilities(self._likelihood, mean, variance)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable classes."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def _settings(self) -> processes.ClassifierSettings:
        likelihood = _LINKS[self.likelihood]() if isinstance(self.likelihood, str) else self.likelihood
        if not likelihood.labels:
            raise ValueError(
                f"likelihood must be one of labels 0 and 1 (its class says labels = True), such as 'logit' or "
                f"'probit', found {likelihood!r}"
            )
        return settings_of(processes.ClassifierSettings, self, likelihood=likelihood)

    def _warn_if_nothing_learned(self, total: float) -> None:
        """Warn where a kernel is so far from the right one, as in wrong units, that no direction helps."""
        coin = -total * np.log(2)
        given = self.learn and isinstance(self.kernel, Kernel)
        if given and any(fitted.bound < (1 - LEAST_GAIN) * coin for fitted in self._processes):
            warnings.warn(
                f"the bound is that of tossing a coin, {coin:.4g}: learning from kernel={self.kernel} led nowhere. Its "
                f"lengthscale may be in other units than X; kernel=None starts from the data",
                stacklevel=4,
            )

    def _warn_if_unfinished(self, rows: int) -> None:
        worst = max(fitted.residual for fitted in self._processes)
        known = min(len(fitted.inputs) for fitted in self._processes)
        spent = any(fitted.status is Status.STEPS_SPENT for fitted in self._processes)
        message = None
        if known < rows:
            message = f"interrupted: the model knows {known} of {rows} rows, and elbo_ is of those"
        elif self.batch_size is None and worst > self.tol and spent:
            message = (
                f"the natural gradient is {worst:.2g} long after {self.max_iter} steps, tol is {self.tol:g}; about "
                f"{worst**2 / 2:.1g} nat are left to gain. Raise max_iter."
            )
        if message is not None:
            warnings.warn(message, ConvergenceWarning, stacklevel=4)

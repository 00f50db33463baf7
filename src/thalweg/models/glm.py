"""Logistic and linear regression with a Gaussian posterior over their coefficients, by PG-SVI's steps.

A generalised linear model gives the target y a likelihood p(y|z), z = intercept + x·coefficients, with independent
normal priors. The posterior is the Gaussian q over intercept and coefficients that maximises the evidence lower bound
E_q log p(y|z) − KL[q ‖ prior].
"""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets

from thalweg.arguments import number
from thalweg.gaussian.likelihood import Likelihood
from thalweg.gaussian.likelihoods import BernoulliLogit, GaussianNoise
from thalweg.models._glm import GeneralisedLinearModel, Regressor, Solution
from thalweg.models._weights import Frame, Pseudo, Rows, Weights, compressed, find_weights, joined

_SMALLEST_VARIANCE = 1e-100
"""The variance of the noise where all targets are 0."""


class BernoulliGLM(ClassifierMixin, GeneralisedLinearModel):
    """Bayesian logistic regression: two classes, P(second class) = 1/(1 + e⁻ᶻ).

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    found by natural-gradient steps (PG-SVI). A fit works on the smaller of two problems: over the coefficients, or,
    where there are fewer examples than coefficients, over the examples.

    Parameters
    ----------
    prior_scale
        Prior standard deviations of the coefficients, a number or one for each feature. Features are used as they are:
        a coefficient is the change of z for one unit of its feature, and with the default of 2.5 a change of 5 is
        at the edge of what is expected. So a feature measured in thousandths is all but ignored and one measured in
        millions all but free; standardise them, or pass ``prior_scale=2.5 / X.std(axis=0)``.
    fit_intercept
        Whether to have an intercept.
    intercept_scale
        Prior standard deviation of z where every feature is at its mean, which is what the intercept would be if the
        features were centred (as in R's rstanarm and brms): shifting a feature changes nothing but ``intercept_``. In
        a stream the mean is that of the first batch.
    max_iter
        The most steps.
    tol
        Stop when the natural gradient is this short: coefficients are then right to about ``tol`` of their posterior
        standard deviations, and the bound to ``tol``²/2 nats.
    verbose
        Whether to show a progress bar.

    Attributes
    ----------
    coef_, coef_sd_ : arrays of shape (n_features,)
        Posterior means and standard deviations of the coefficients.
    intercept_, intercept_sd_ : float
        Those of the intercept, 0 if there is none.
    covariance_ : array or None
        The joint posterior covariance of intercept (first, if there is one) and coefficients; None if the fit was over
        the examples, where it is never formed.
    elbo_ : float
        The evidence lower bound, in nats; for a stream the sum over batches.
    n_iter_ : int
        Steps taken.
    history_ : History
        Objective (minus the bound), length of the natural gradient and step size, now and then.
    classes_ : array
        The two classes.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]])
    >>> model = BernoulliGLM().fit(X, ["no", "no", "yes", "no", "yes", "yes"])
    >>> model.predict([[-3.0], [3.0]]).tolist()
    ['no', 'yes']
    >>> model.summary()
                 mean      sd  2.5 %  97.5 %  P(> 0)
    intercept  ...
    x0         ...
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "BernoulliGLM":
        """Take in a further batch: the posterior so far is the prior of the batch.

        That is Bayes' rule with a Gaussian in place of each intermediate posterior, so the outcome depends on the order
        of the batches a little, and differs from one fit to all of them, the less the larger the batches. It is always
        over the coefficients, for streams with many more examples than features; batches of about the same size share
        one compiled function. A batch that is refused leaves the model as it was.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes
            The two classes, if the first batch does not hold both.
        """
        self._take_in(self._rows(X, y, sample_weight, first=not hasattr(self, "coef_"), classes=classes))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the two classes, averaged over the posterior of the coefficients."""
        second = self._mean_target(X)
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        # σ is symmetric: the average over the posterior is on the side of the mean.
        mean, _ = self._latent(X)
        return self.classes_[(mean > 0).astype(int)]

    def _likelihood(self) -> Likelihood:
        return BernoulliLogit()

    def _solve(self, rows: Rows, before: Weights | None) -> Solution:
        # The likelihood averaged over the prior N(0, v) of z: its slope is ±1/2, its curvature about 1/√(16 + 2πv). In
        # a stream v is small.
        variance = 0.0 if before is not None else np.sum(self._frame(rows).design(rows.columns) ** 2, axis=1)
        curvature = 1 / np.sqrt(16 + 2 * np.pi * variance)
        start = Pseudo((rows.targets - 0.5) / curvature, rows.weights * curvature)
        return self._maximise(rows, before, self._likelihood(), start)

    def _targets(self, y: np.ndarray, first: bool, classes: Any = None, **known: Any) -> np.ndarray:
        check_classification_targets(y)
        if first:
            self.classes_ = _two_classes(np.unique(y if classes is None else classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first batch, {self.classes_}, found {classes}")
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y must hold the classes {self.classes_} only, found {unknown}")
        return (y == self.classes_[1]).astype(np.float64)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _two_classes(classes: np.ndarray) -> np.ndarray:
    if len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is multiclass: {len(classes)} classes. "
            f"Wrap the model in sklearn.multiclass.OneVsRestClassifier"
        )
    if len(classes) < 2:
        raise ValueError(
            f"BernoulliGLM needs two classes, found one class, {classes}; for the first batch of a stream pass classes="
        )
    return classes


class GaussianGLM(Regressor):
    """Bayesian linear regression: y = z + noise, the noise being normal. The posterior is exact.

    Parameters
    ----------
    noise_variance
        The variance of the noise; by default it is learned, see the notes.
    prior_scale
        Prior standard deviations of the coefficients, in units of the standard deviation of the noise: the conjugate
        prior, so that another unit of y changes the unit of the coefficients and nothing else. The posterior mean is
        that of ridge regression with ``alpha = 1 / prior_scale**2``.
    intercept_scale
        That of y where every feature is at its mean, in the same units.
    fit_intercept, max_iter, tol, verbose
        As in :class:`BernoulliGLM`.

    Attributes
    ----------
    noise_variance_ : float
        As given or learned.

    Notes
    -----
    The bound is highest at the exact posterior, where it equals the log evidence, and over the variance of the noise
    it is highest at (‖y − z‖² + ‖u‖²)/n: the squared residuals plus the squared coefficients, in units of their
    ``prior_scale``, at the posterior mean, over the number of examples. Intervals take that variance as known.

    A stream is kept as the triangular factor of its features and targets, so that after every batch the model is that
    of one fit to all of them, with the noise learned from all of them.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = GaussianGLM(noise_variance=0.01).fit(X, [1.0, 3.0, 5.0, 7.0])
    >>> model.interval(0.9).round(2)
    array([[0.96, 1.23],
           [1.87, 2.01]])
    """

    def __init__(
        self,
        noise_variance: float | None = None,
        prior_scale: Any = 2.5,
        fit_intercept: bool = True,
        intercept_scale: float = 1000.0,
        max_iter: int = 1000,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        super().__init__(prior_scale, fit_intercept, intercept_scale, max_iter, tol, verbose)
        self.noise_variance = noise_variance

    def _likelihood(self) -> Likelihood:
        return GaussianNoise(self.noise_variance_)

    def _targets(self, y: np.ndarray, first: bool, **known: Any) -> np.ndarray:
        return y.astype(np.float64)

    def _solve(self, rows: Rows, before: Weights | None) -> Solution:
        rows = compressed(rows if before is None else joined(self._stream, rows))
        units = self._frame(rows)
        variance = self._noise_variance(units, rows)
        frame = Frame(units.centre, units.scales * np.sqrt(variance))
        # A Gaussian observation of each example is what the likelihood is.
        start = Pseudo(rows.targets, rows.weights / variance)
        weights, result = find_weights(frame, rows, GaussianNoise(variance), start, self._search())
        learned = {"noise_variance_": variance, "_stream": rows}
        return Solution(weights, result, result.steps, -result.history.last["value"], learned)

    def _noise_variance(self, units: Frame, rows: Rows) -> float:
        if self.noise_variance is not None:
            return float(number("noise_variance", self.noise_variance, above=0))
        root = np.sqrt(rows.weights)[:, None]
        examples = root * np.column_stack([units.design(rows.columns), rows.targets])
        prior = np.eye(len(units.scales), examples.shape[1])
        # The last entry of the triangular factor is the distance of the targets from the span of the features.
        triangle: Any = np.linalg.qr(np.vstack([examples, prior]), mode="r")
        distance = triangle[-1, -1]
        return float(max(distance**2 / np.sum(rows.weights), _SMALLEST_VARIANCE))

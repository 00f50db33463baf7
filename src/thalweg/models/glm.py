"""Logistic and linear regression with a Gaussian posterior over their coefficients, by PG-SVI's steps.

A generalised linear model gives the target y a likelihood p(y|z), z = intercept + x·coefficients, with independent
normal priors. The posterior is the Gaussian q over intercept and coefficients that maximises the evidence lower bound
E_q log p(y|z) − KL[q ‖ prior].
"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import logit
from sklearn.base import _fit_context
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions

from thalweg.gaussian import linear
from thalweg.models._glm import POSITIVE, Classifier, Regressor


class BernoulliGLM(Classifier):
    """Bayesian logistic regression: two classes, P(second class) = 1/(1 + e⁻ᶻ).

    The posterior over the coefficients is the normal distribution N(m, V) that maximises the evidence lower bound,
    found by natural-gradient steps (PG-SVI). A fit works on the smaller of two problems: over the coefficients, or,
    where there are fewer examples than coefficients, over the examples.

    Parameters
    ----------
    prior_scale
        Prior standard deviations of the coefficients in the units of the data, a number or one for each feature. With
        ``"learn"`` every feature is counted in standard deviations, so that units do not matter, one scale for all is
        looked for over six decades, and the posterior is averaged over it, with a weak prior (see the notes): features
        that say little are shrunk towards 0. That predicts best; but a large effect among many small ones is shrunk
        with them, and its interval then covers it less often than it says. The default, ``"auto"``, does so where there
        are fewer than ten examples for each feature; elsewhere the prior is wide, 2.5 for two standard deviations of a
        feature and wider where an effect turns out larger, and intervals cover effects, 0 too, about as often as they
        say.
    fit_intercept
        Whether to have an intercept.
    intercept_scale
        Prior standard deviation of z where every feature is at its mean, which is what the intercept would be if the
        features were centred (as in R's rstanarm and brms): shifting a feature changes nothing but ``intercept_``. The
        prior mean is what z would be without features. In a stream both are those of the first batch.
    class_weight
        How often the examples of each class count: a dictionary by class, 1 for those left out, or ``"balanced"``, all
        classes together as often. Probabilities and intervals are those of examples so weighted.
    max_iter
        The most steps for one prior.
    tol
        Stop when the natural gradient is this short: coefficients are then right to about ``tol`` of their posterior
        standard deviations, and the bound to half the square of it, in nats.
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
        The evidence lower bound at ``prior_scale_``, in nats; for a stream the sum over batches. Under ``"auto"`` it
        counts what Jeffreys' prior adds to labels as if it had been observed.
    prior_scale_ : float or array
        As given, chosen, or the most probable: one for each feature, in the units of the data.
    n_iter_ : int
        Steps taken, for all the priors tried.
    history_ : History
        Objective (minus the bound), length of the natural gradient and step size, now and then.
    classes_ : array
        The two classes.

    Notes
    -----
    ``"learn"`` is about the prior standard deviation t of z at a typical example, less the intercept's part, to which
    every feature that varies contributes as much. It is half-Cauchy of scale 1, and e to the bound is taken for its
    likelihood. The derivative of the bound in log t is Σ(m² + V − 1), over the means and variances of the coefficients
    in units of their prior scales. Bound and derivative are computed at 13 values of t from 1e-3 to 1e3, each posterior
    starting from the last, the most probable t is found by Brent's method, and the posteriors at seven quantiles of t
    are averaged: means, standard deviations, intervals and predictions are those of the mixture.

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

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Take in a further batch: the posterior so far is the prior of the batch; see :meth:`GaussianGLM.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in :meth:`fit`.
        classes
            The two classes, if the first batch does not hold both.
        """
        if self.class_weight == "balanced":
            raise ValueError("class_weight must be a dictionary or None in a stream, found 'balanced'")
        return self._fit(X, y, sample_weight, offset, stream=True, classes=classes)

    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Probabilities of the two classes, averaged over the posterior of the coefficients.

        Parameters
        ----------
        X, offset
            As in :meth:`fit`.
        """
        second = self._predicted(X, offset)
        return np.column_stack([1 - second, second])

    def decision_function(self, X: Any, offset: Any = None) -> np.ndarray:
        """The log-odds of the second class, by its averaged probability.

        Parameters
        ----------
        X, offset
            As in :meth:`fit`.
        """
        rounding = np.finfo(float).eps
        return logit(np.clip(self._predicted(X, offset), rounding, 1 - rounding))

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """The more probable class.

        Parameters
        ----------
        X, offset
            As in :meth:`fit`.
        """
        second = self._predicted(X, offset)
        return self.classes_[(second > 0.5).astype(int)]

    def _target_model(self) -> linear.TargetModel:
        return linear.BinaryTargets()

    def _possible(self, classes: np.ndarray) -> np.ndarray:
        if len(classes) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is multiclass: {len(classes)} "
                f"classes. CategoricalGLM is for more than two"
            )
        if len(classes) < 2:
            raise ValueError(
                f"BernoulliGLM needs two classes, found one class, {classes}; for the first batch of a stream pass "
                f"classes="
            )
        return classes

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class CategoricalGLM(Classifier):
    """Bayesian multinomial logistic regression: two or more classes, P(class k) = softmax(z)ₖ.

    The posterior over the coefficients of all classes together is the normal distribution that maximises the evidence
    lower bound, found by natural-gradient steps; expectations over it are averages over 256 points that fill the space
    evenly, or fewer where many rows leave little uncertain. A common shift of all z changes nothing, so coefficients
    are counted from their mean over the classes.

    Parameters
    ----------
    prior_scale
        Prior standard deviations of the coefficients of the log-odds of two classes, in the units of the data, a number
        or one for each feature. ``"auto"`` is 1.25 for a standard deviation of a feature, and wider for one whose
        coefficients turn out larger; with fewer than ten examples for each feature it is narrower by the root of how
        many are missing. It is joined by Jeffreys' prior, in the form of a fraction of a label of each class for each
        example, since few examples alone lead away from 0: a feature that is 1 in 10 of 200 rows is covered in 93 %.
    fit_intercept, intercept_scale, max_iter, tol, verbose, class_weight
        As in :class:`BernoulliGLM`.

    Attributes
    ----------
    coef_, coef_sd_ : arrays of shape (n_classes, n_features)
        Posterior means and standard deviations of the coefficients; they add up to 0 over the classes.
    intercept_, intercept_sd_ : arrays of shape (n_classes,)
        Those of the intercepts, 0 if there are none.
    covariance_ : array
        The joint posterior covariance: of a class after the classes before it, intercept first.
    classes_, elbo_, prior_scale_, n_iter_, history_
        As in :class:`BernoulliGLM`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = CategoricalGLM().fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> model.coef_.shape
    (3, 4)
    """

    _parameter_constraints: ClassVar[dict] = {"prior_scale": [StrOptions({"auto"}), POSITIVE, "array-like"]}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the posterior given these examples, and forget all others.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`BernoulliGLM.fit`.
        """
        return self._fit(X, y, sample_weight, None)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior of the coefficients."""
        return self._predicted(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """The logarithms of the averaged probabilities; for two classes the log-odds of the second."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(self.predict_proba(X), np.finfo(float).tiny))
        return logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        most_probable = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[most_probable]

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Central credible intervals of the coefficients, for each class and coefficient, the intercept's first.

        Parameters
        ----------
        level
            The posterior probability of each interval.
        """
        return super().interval(level).reshape(len(self.classes_), -1, 2)

    def _coefficient_names(self) -> list[str]:
        names = super()._coefficient_names()
        return [f"{label}: {name}" for label in self.classes_ for name in names]

    def sample(self, n: int = 1, X: Any = None, random_state: Any = None) -> np.ndarray:  # type: ignore[override]
        """Draws from the posterior: of coefficients, by class, the intercept first, or of the classes of rows.

        Parameters
        ----------
        n, X, random_state
            As in :meth:`GaussianGLM.sample`.
        """
        return super().sample(n, X, None, random_state)

    def _target_model(self) -> linear.TargetModel:
        return linear.CategoricalTargets(len(self.classes_))

    def _possible(self, classes: np.ndarray) -> np.ndarray:
        if len(classes) < 2:
            raise ValueError(f"CategoricalGLM needs two classes or more, found one class, {classes}")
        return classes


@dataclass(repr=False, eq=False)
class _NoiseVariance:
    """The first parameter of :class:`GaussianGLM`: fields of the last base class come first."""

    noise_variance: float | None = None


@dataclass(repr=False, eq=False)
class GaussianGLM(Regressor, _NoiseVariance):
    """Bayesian linear regression: y = z + noise, the noise being normal. The posterior is exact.

    Parameters
    ----------
    noise_variance
        The variance of the noise; by default it is learned, see the notes.
    prior_scale
        Prior standard deviations of the coefficients, in units of the standard deviation of the noise: the conjugate
        prior, so that another unit of y changes the unit of the coefficients and nothing else. The posterior mean is
        that of ridge regression with ``alpha = 1 / prior_scale**2``. ``"auto"`` and ``"learn"`` are as in
        :class:`BernoulliGLM`, wide being 2.5 standard deviations of y; in a stream all batches choose it.
    intercept_scale
        That of y where every feature is at its mean, around the mean of y, in the same units.
    fit_intercept, max_iter, tol, verbose
        As in :class:`BernoulliGLM`.

    Attributes
    ----------
    noise_variance_ : float
        As given or learned.
    prior_scale_ : float or array
        As given or learned.

    Notes
    -----
    The bound is highest at the exact posterior, where it equals the log evidence, and over the variance of the noise
    it is highest at (‖y − z‖² + ‖u‖²)/n: the squared residuals plus the squared coefficients, in units of their
    ``prior_scale``, at the posterior mean, over the number n of examples. Coefficients follow part of the noise, so if
    its variance is learned the posterior is Student's t with n − d degrees of freedom, d being the effective number of
    coefficients, Σ(1 − V) with V in units of the prior, and its scale, ``coef_sd_``, is for n/(n − d) times the
    variance. There is at least one degree of freedom.

    A stream is kept as the triangular factor of its features and targets, so that after every batch the model is that
    of one fit to all of them, with the noise learned from all of them.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = GaussianGLM(noise_variance=0.01).fit(X, [1.0, 3.0, 5.0, 7.0])
    >>> model.interval(0.9).round(2)
    array([[0.87, 1.14],
           [1.92, 2.07]])
    """

    _parameter_constraints: ClassVar[dict] = {"noise_variance": [POSITIVE, None]}

    intercept_scale: float = 1000.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Find the posterior given these examples, and forget all others; see :meth:`BernoulliGLM.fit`."""
        super().fit(X, y, sample_weight, offset)
        if self.noise_variance is None and len(np.asarray(y)) <= 2:
            message = "one or two rows tell nothing of the noise, and intervals are far too narrow: give noise_variance"
            warnings.warn(message, UserWarning, stacklevel=2)
        return self

    def _target_model(self) -> linear.TargetModel:
        return linear.RealTargets(self.noise_variance)

    def _store(self, fit: linear.LinearFit) -> None:
        super()._store(fit)
        self.noise_variance_ = float(fit.likelihood.variance)

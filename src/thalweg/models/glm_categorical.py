"""Classification into several classes with a Gaussian posterior over the coefficients."""

from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from thalweg.arguments import number, whole
from thalweg.gaussian import linear
from thalweg.models._common import seed, unharmed
from thalweg.models._glm import POSITIVE, Classifier
from thalweg.models._summary import Summary
from thalweg.runs import Run


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

    _parameter_constraints: ClassVar[dict] = {
        **Classifier._parameter_constraints,
        "prior_scale": [StrOptions({"auto"}), POSITIVE, "array-like"],
    }

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "CategoricalGLM":
        """Find the posterior given these examples, and forget all others.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`BernoulliGLM.fit`.
        """
        with unharmed(self):
            rows = self._observations(X, y, sample_weight, None)
            with Run(type(self).__name__, bar=bool(self.verbose)):
                fit = linear.fit_categorical(rows, len(self.classes_), self._model())
            self._check(fit)
            self._posterior: Any = fit
            means, covariance = fit.coefficients()
            parts = means, np.sqrt(np.maximum(np.diagonal(covariance), 0))
            split = [part.reshape(len(self.classes_), -1) for part in parts]
            first = int(self.fit_intercept)
            self.coef_, self.coef_sd_ = (part[:, first:] for part in split)
            none = np.zeros(len(self.classes_))
            intercepts: Any = (part[:, 0] if first else none for part in split)
            self.intercept_, self.intercept_sd_ = intercepts
            self.covariance_, self.prior_scale_, self.elbo_ = covariance, fit.prior_scale, fit.elbo
            self.n_iter_, self.history_ = fit.steps, fit.history
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over the posterior of the coefficients."""
        X = self._rows(X)
        return self._posterior.probabilities(X)

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
        check_is_fitted(self)
        intervals = self.summary().of.interval(float(number("level", level, above=0, below=1)))
        return intervals.reshape(len(self.classes_), -1, 2)

    def summary(self) -> Summary:
        """A table as that of :class:`BernoulliGLM`, with the coefficients of each class after those before."""
        check_is_fitted(self)
        names = [*["intercept"][: int(self._has_intercept())], *self._names()]
        means, covariance = self._posterior.coefficients()
        deviations = np.sqrt(np.maximum(np.diagonal(covariance), 0))
        return Summary([f"{label}: {name}" for label in self.classes_ for name in names], means, deviations)

    def sample(self, n: int = 1, X: Any = None, random_state: Any = None) -> np.ndarray:  # type: ignore[override]
        """Draws from the posterior: of coefficients, by class, the intercept first, or of the classes of rows.

        Parameters
        ----------
        n, X, random_state
            As in :meth:`GaussianGLM.sample`.
        """
        check_is_fitted(self)
        n, rng = whole("n", n), np.random.default_rng(seed(random_state))
        rows = np.zeros((0, self.n_features_in_)) if X is None else self._rows(X)
        coefficients, latent = self._posterior.sample(n, rows, rng)
        if X is None:
            return coefficients
        bounds = np.cumsum(softmax(latent, axis=-1), axis=-1)[..., :-1]
        return self.classes_[np.sum(rng.uniform(size=bounds.shape[:-1])[..., None] > bounds, axis=-1)]

    def _has_intercept(self) -> bool:
        return self._posterior.frame.centre is not None

    def _possible(self, classes: np.ndarray) -> np.ndarray:
        if len(classes) < 2:
            raise ValueError(f"CategoricalGLM needs two classes or more, found one class, {classes}")
        return classes

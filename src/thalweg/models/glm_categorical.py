"""Classification into several classes with a Gaussian posterior over the coefficients."""

from typing import Any, ClassVar

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions

from thalweg.gaussian import linear
from thalweg.models._glm import POSITIVE, Classifier


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
        intervals = super().interval(level)
        return intervals.reshape(len(self.classes_), -1, 2)

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

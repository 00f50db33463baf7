"""What the generalised linear models have in common: everything but the likelihood."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, _fit_context, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from thalweg.arguments import number, whole
from thalweg.descent import Status
from thalweg.gaussian import linear
from thalweg.gaussian.linear.weights import RELATIVE_ROUNDING
from thalweg.models._common import Storable, seed, unharmed
from thalweg.models._inputs import check_sizes, dense, example_weights, row_numbers, validated, warn_of_little_weight
from thalweg.models._summary import Summary

POSITIVE: Interval = Interval(Real, 0, None, closed="neither")


@dataclass(repr=False, eq=False)
class GeneralisedLinearModel(Storable):
    """Base of the generalised linear models: a Gaussian posterior over coefficients by natural-gradient steps.

    A subclass says what kind of targets it has, and how they are checked.
    """

    _true_tags: ClassVar[tuple[str, ...]] = ("input_tags.sparse",)
    _parameter_constraints: ClassVar[dict] = {
        "prior_scale": [StrOptions({"auto", "learn"}), POSITIVE, "array-like"],
        "fit_intercept": ["boolean"],
        "intercept_scale": [POSITIVE],
        "tol": [POSITIVE],
    }

    prior_scale: Any = "auto"
    fit_intercept: bool = True
    intercept_scale: float = 10.0
    max_iter: int = 1000
    tol: float = 1e-5
    verbose: int = 0

    _target_model: ClassVar[Callable[..., linear.TargetModel]]
    """How targets depend on the linear predictor."""

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any) -> tuple[np.ndarray, np.ndarray]:
        """Targets and weights as the likelihood wants them, or an error; ``first`` if nothing was seen."""
        return y.astype(np.float64), weights

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Find the posterior given these examples, and forget all others.

        Parameters
        ----------
        X
            Features, an array, data frame or sparse matrix with a row for each example. A sparse one is made dense, and
            refused if it would then take more than a gigabyte: give it to ``partial_fit`` by batches of rows.
        y
            Targets.
        sample_weight
            How often each example counts; 1 by default. A weight of 2 is the same as giving the example twice.
        offset
            A part of z that is known for each example: z = offset + intercept + x·coefficients.
        """
        return self._fit(X, y, sample_weight, offset)

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any, stream: bool = False, classes: Any = None) -> Self:
        """Fit to the rows alone, or in a stream to these after all before."""
        before = getattr(self, "_posterior", None) if stream else None
        with unharmed(self):
            rows = self._observations(X, y, sample_weight, offset, before is None, classes)
            if not stream:
                warn_of_little_weight(rows.weights)
            model = self._model()
            self._store(model.continue_fit(rows, before) if stream else model.fit(rows))
            for message in linear.misfit_warnings(self._posterior.stream or rows, self._posterior, before):
                warnings.warn(f"{type(self).__name__}: {message}", UserWarning, stacklevel=4)
        return self

    def _observations(
        self, X: Any, y: Any, sample_weight: Any, offset: Any, first: bool = True, classes: Any = None
    ) -> linear.LinearObservations:
        X, y = validated(self, X, y, reset=first, dtype=np.float64, y_numeric=is_regressor(self), accept_sparse="csr")
        X = dense(X)
        check_sizes("X", X)
        check_sizes("y", y)
        if not first and self.fit_intercept != (had := self._has_intercept()):
            raise ValueError(
                f"fit_intercept must stay what it was in the first fit, {had}, found {self.fit_intercept!r}: set it "
                f"back, or fit anew"
            )
        weights, offsets = example_weights(sample_weight, X), row_numbers("offset", offset, len(X))
        # Classes are those of rows that count.
        counts = weights > 0
        targets, weights = self._targets(y[counts], weights[counts], first, classes)
        self._warn_of_rounding(X[counts])
        return linear.LinearObservations.of(X[counts], targets, weights, self.fit_intercept, offsets[counts])

    def _warn_of_rounding(self, X: np.ndarray) -> None:
        """Warn of columns that vary by no more than rounding."""
        sizes, names = np.max(np.abs(X), axis=0), np.array(self._names(), dtype=object)
        lost = (np.ptp(X, axis=0) > 0) & (np.std(X, axis=0) <= RELATIVE_ROUNDING * sizes)
        if self.fit_intercept and np.any(lost):
            warnings.warn(
                f"X varies by less than {RELATIVE_ROUNDING:g} of its size in {', '.join(names[lost])}, which is "
                f"rounding, and is taken for constant there: subtract from such columns what all rows have in common, "
                f"before they are rounded",
                UserWarning,
                stacklevel=6,
            )

    def _model(self) -> linear.LinearModel:
        settings = linear.AscentSettings(float(self.tol), int(self.max_iter))
        intercept = float(self.intercept_scale) if self.fit_intercept else None
        return linear.LinearModel(self._target_model(), settings, self._checked_scale(), intercept)

    def _checked_scale(self) -> Any:
        if isinstance(self.prior_scale, str):
            return self.prior_scale
        scales = np.array(self.prior_scale, dtype=np.float64)
        if scales.ndim and scales.shape != (self.n_features_in_,):
            raise ValueError(
                f"prior_scale must be a number or have shape ({self.n_features_in_},), one entry for each feature, "
                f"found shape {scales.shape}"
            )
        if not np.all((scales > 0) & np.isfinite(scales)):
            raise ValueError(f"prior_scale must hold finite numbers above 0, found {self.prior_scale!r}")
        return scales if scales.ndim else float(scales)

    def _check(self, fit: linear.LinearFit) -> None:
        """Refuse a bound that is no number, and warn of a tolerance that was not reached."""
        if not np.isfinite(fit.elbo):
            raise ValueError(
                "X and y lead to a bound beyond the range of numbers: look for features, targets or offsets of extreme "
                "size, or lower prior_scale. The model is as it was before"
            )
        if not fit.status.success and fit.status is not Status.INTERRUPTED:
            last = fit.history.last
            warnings.warn(
                f"{type(self).__name__} took {fit.steps} steps without reaching tol={self.tol}: natural gradient "
                f"{last['residual']:.1e}, step size {last['size']:.1e}. Standardise the features or lower prior_scale; "
                f"where the gradient is small and the step is not, raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _store(self, fit: linear.LinearFit) -> None:
        self._check(fit)
        self._posterior = fit
        parts = fit.weights.coefficients()
        self.coef_, self.coef_sd_ = (part[..., int(self.fit_intercept) :] for part in parts)
        self.intercept_, self.intercept_sd_ = map(self._intercepts, parts)
        self.covariance_ = fit.weights.covariance_of_coefficients()
        self.prior_scale_, self.elbo_ = fit.prior_scale, fit.elbo
        self.n_iter_, self.history_ = fit.steps, fit.history

    def _intercepts(self, coefficients: np.ndarray) -> Any:
        """That of all coefficients, or those of each row of them; 0 without intercepts."""
        intercepts = coefficients[..., 0] if self.fit_intercept else np.zeros(coefficients.shape[:-1])
        return intercepts if intercepts.ndim else float(intercepts)

    def _has_intercept(self) -> bool:
        """Whether the model was fitted with an intercept, whatever has been set since."""
        return self._posterior.weights.frame.centre is not None

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = dense(validated(self, X, reset=False, dtype=np.float64, accept_sparse="csr"))
        check_sizes("X", X, least=0)
        return X

    def _predicted(self, X: Any, offset: Any = None) -> np.ndarray:
        """The mean of the target, averaged over the posterior, or the probabilities of several classes."""
        X = self._rows(X)
        return self._posterior.predict(X, row_numbers("offset", offset, len(X)))

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Central credible intervals of the coefficients, one per row; the intercept's is the first, if there is one.

        Parameters
        ----------
        level
            The posterior probability of each interval.
        """
        check_is_fitted(self)
        return self._marginals().interval(float(number("level", level, above=0, below=1)))

    def sample(self, n: int = 1, X: Any = None, offset: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws from the posterior.

        Parameters
        ----------
        n
            How many.
        X, offset
            Rows to draw targets of, as :meth:`predict` takes them. None for draws of the coefficients.
        random_state
            A seed, or a generator of NumPy's.

        Returns
        -------
        array
            A draw per row: of the intercept, if there is one, and the coefficients; or of a target for each row of X.
        """
        check_is_fitted(self)
        n, rng = whole("n", n), np.random.default_rng(seed(random_state))
        rows = np.zeros((0, self.n_features_in_)) if X is None else self._rows(X)
        offsets = row_numbers("offset", offset, len(rows))
        targets = self._target_model()
        draws = [
            coefficients if X is None else targets.draw(part.likelihood, latent, factors, rng)
            for part, coefficients, latent, factors in self._posterior.draws(n, rows, offsets, rng)
        ]
        return rng.permutation(np.concatenate(draws))

    def summary(self) -> Summary:
        """A table: mean, standard deviation, 2.5 % and 97.5 % quantile and P(coefficient > 0) of each coefficient."""
        check_is_fitted(self)
        means, deviations = self._posterior.weights.coefficients()
        return Summary(self._coefficient_names(), means.ravel(), deviations.ravel(), self._marginals())

    def _coefficient_names(self) -> list[str]:
        return [*["intercept"][: self._has_intercept()], *self._names()]

    def _names(self) -> list[str]:
        return list(getattr(self, "feature_names_in_", [f"x{index}" for index in range(self.n_features_in_)]))

    def _marginals(self) -> linear.CoefficientMarginals:
        shares, parts = zip(*self._posterior.weights.parts(), strict=True)
        moments = np.stack([part.coefficients() for part in parts], axis=1)
        means, deviations = moments.reshape(2, len(parts), -1)
        freedoms = np.array([part.freedom for part in parts])
        return linear.CoefficientMarginals(np.array(shares), means, deviations, freedoms)


class Regressor(RegressorMixin, GeneralisedLinearModel):
    """Models of numbers."""

    _trials: ClassVar[tuple[str, ...]] = ("predict", "predict_interval")

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Take in a further batch: the posterior so far is the prior of the batch.

        That is Bayes' rule with a Gaussian in place of each intermediate posterior, so the outcome depends on the order
        of the batches a little; for a :class:`GaussianGLM` it is exact. The others remember the first 2,048 rows, and
        are fitted to all of them again with each batch, so that the order of these does not matter; after that a batch
        that contradicts the ones before it is warned of, since rows that are sorted lead a stream astray. It is for
        streams with many more examples than features. A batch that is refused leaves the model as it was. A
        ``prior_scale`` of ``"auto"`` or ``"learn"`` is that of :meth:`fit` for the rows remembered, or that of a
        :meth:`fit` before it; a :class:`GaussianGLM` chooses it by all batches.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in :meth:`fit`.
        """
        return self._fit(X, y, sample_weight, offset, stream=True)

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """The mean of the target, averaged over the posterior of the coefficients.

        Parameters
        ----------
        X, offset
            As in :meth:`fit`.
        """
        return self._predicted(X, offset)

    def predict_interval(self, X: Any, level: float = 0.95, offset: Any = None) -> np.ndarray:
        """Central intervals that a new target is in with the probability ``level``: lower and upper end, one per row.

        They are about observations, noise included. For counts both ends belong to the interval, and the probability
        is at least ``level``.

        Parameters
        ----------
        X, offset
            As in :meth:`fit`.
        level
            The probability.
        """
        X, level = self._rows(X), float(number("level", level, above=0, below=1))
        return self._target_model().interval(self._posterior, X, row_numbers("offset", offset, len(X)), level)


@dataclass(repr=False, eq=False)
class Classifier(ClassifierMixin, GeneralisedLinearModel):
    """Models of classes; a subclass says which are possible, by :meth:`_possible`."""

    _parameter_constraints: ClassVar[dict] = {"class_weight": [dict, StrOptions({"balanced"}), None]}

    class_weight: Any = None
    _possible: ClassVar[Callable[..., np.ndarray]]
    """``_possible(classes)`` are the classes, unless it refuses them."""

    def sample(self, n: int = 1, X: Any = None, offset: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws from the posterior, of coefficients or of the classes of rows; see :meth:`GaussianGLM.sample`.

        Parameters
        ----------
        n, X, offset, random_state
            As there.
        """
        draws = super().sample(n, X, offset, random_state)
        return draws if X is None else self.classes_[draws]

    def _targets(self, y: np.ndarray, weights: np.ndarray, first: bool, classes: Any) -> tuple[np.ndarray, np.ndarray]:
        check_classification_targets(y)
        if first:
            self.classes_ = self._possible(np.unique(y if classes is None else classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first batch, {self.classes_}, found {classes}")
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y must hold the classes {self.classes_} only, found {unknown}")
        codes = np.searchsorted(self.classes_, y)
        return codes.astype(np.float64), self._reweighted(codes, weights)

    def _reweighted(self, codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The weights of the examples, where their classes have weights too."""
        if self.class_weight is None:
            return weights
        known = self.classes_.tolist()
        if isinstance(self.class_weight, str):
            factors = np.sum(weights) / (len(known) * np.bincount(codes, weights, len(known)))
        else:
            if unknown := [label for label in self.class_weight if label not in known]:
                raise ValueError(f"class_weight must be for the classes {self.classes_}, found {unknown[0]!r}")
            given = [self.class_weight.get(label, 1.0) for label in known]
            factors = row_numbers("class_weight", given, len(known), above=0)
        return weights * factors[codes]

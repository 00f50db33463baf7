"""Completing a matrix of ratings."""

import warnings
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, TransformerTags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from thalweg import arguments, completion
from thalweg.descent import Status
from thalweg.models import _ratings
from thalweg.models._common import Storable, unharmed
from thalweg.models._ids import IdIndex, id_pairs, single_ids


@dataclass(repr=False, eq=False)
class MatrixCompletion(RegressorMixin, Storable):
    """Ratings of columns by rows (of films by people, of reactions by compounds): the missing ones, and how sure.

    A rating is a mean, a bias of its row, one of its column, and the product of their factors, plus noise. Factors and
    biases of a row have one Gaussian posterior with a full covariance, found in closed form given the columns, and the
    other way round; their priors, the noise, and how much noisier some rows and columns are than others come from the
    bound on the evidence, which every step raises. Directions that are of no use are switched off by the prior.

    Parameters
    ----------
    rank
        The most factors of a row, as far as there are rows, columns and ratings of each. Those of no use are switched
        off: see ``strengths_``. None: 30, or 60 with implicit feedback.
    method
        "factors" is the model above. "nuclear" finds all cells at once, of least smoothed nuclear norm and misfit in
        ``bounds``, as the spectral paper does. It has no posteriors, and is there for comparison.
    feedback
        "explicit": values are ratings, and a cell without one is not known. "implicit": values are counts of what was
        done (1 where y is None), and a cell without one was not done, though with less confidence.
    bounds
        The least and the largest rating, to which predictions are clipped. "auto" takes those of the training set where
        they are of a scale, each value coming twice on average. None clips nothing.
    presence
        Whether which columns a row has rated tells of it, whatever the ratings: the first singular vectors of that
        pattern are then side information of rows and columns. Implicit feedback is nothing else, and has no use of it.
    confidence
        With implicit feedback, how much more a cell with a count of 1 weighs than one without.
    validation_fraction
        The share of the ratings that is set aside; the fit ends when their error rises, and is the best by it. 0 sets
        nothing aside, and the fit ends when the bound rises by less than ``tol`` nats a rating.
    max_iter, tol
        The most sweeps over the ratings, and what ends them earlier: see ``validation_fraction``.
    warm_start
        Whether ``fit`` starts from where the last one ended, if it has the same rows and columns.
    random_state, verbose
        Seeds where the factors start, and what is set aside; whether to show a bar and a line for each sweep.

    Attributes
    ----------
    row_ids_, column_ids_ : ndarray
        The ids that were seen, in the order of ``row_factors_`` and ``column_factors_``.
    row_factors_, column_factors_ : ndarray
        Means of the factors.
    row_biases_, column_biases_ : ndarray
        Means of the biases, in the units of the ratings.
    mean_, noise_ : float
        The mean rating, and the typical standard deviation of one about what is predicted by the true factors.
    strengths_ : ndarray
        The standard deviation that each direction adds to ratings, largest first: near 0 for those switched off.
    elbo_ : float
        The bound on the log evidence, in nats, up to a constant.
    history_ : dict
        After each sweep the bound, the noise, and the held-out error if there is one.
    n_iter_, n_features_in_ : int
        Sweeps done; 2, a row and a column.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import MatrixCompletion
    >>> rng = np.random.default_rng(0)
    >>> person, film = rng.integers(0, 30, (2, 500))
    >>> taste = rng.normal(size=(30, 2))
    >>> stars = 3 + np.sum(taste[person] * taste[::-1][film], axis=1) + 0.1 * rng.normal(size=500)
    >>> model = MatrixCompletion(rank=3, random_state=0).fit(np.column_stack([person, film]), stars)
    >>> mean, std = model.predict([[0, 1], [99, 1]], return_std=True)
    >>> bool(std[1] > 2 * std[0])    # nobody knows person 99
    True
    >>> ids, scores = model.recommend(0, 3)
    >>> ids.shape
    (3,)
    """

    _rows: IdIndex = field(init=False)
    _columns: IdIndex = field(init=False)
    _parameter_constraints: ClassVar[dict] = {
        "rank": [Interval(Integral, 1, None, closed="left"), None],
        "method": [StrOptions({"factors", "nuclear"})],
        "feedback": [StrOptions({"explicit", "implicit"})],
        "bounds": [StrOptions({"auto"}), tuple, list, None],
        "presence": ["boolean"],
        "confidence": [Interval(Real, 0, None, closed="neither")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    }

    rank: int | None = None
    _: KW_ONLY
    method: str = "factors"
    feedback: str = "explicit"
    bounds: Any = "auto"
    presence: bool = True
    confidence: float = 2.0
    validation_fraction: float = 0.0
    max_iter: int = 150
    tol: float = 2e-4
    warm_start: bool = False
    random_state: Any = None
    verbose: bool = False

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, row_features: Any = None, column_features: Any = None
    ) -> "MatrixCompletion":
        """Learn from ratings.

        Parameters
        ----------
        X
            An (n, 2) array or DataFrame of ids of rows and columns, numbers or words; a cell that occurs twice was
            rated twice. Or a SciPy sparse matrix: stored entries, added up in each cell, are ratings; ids are 0, 1, ….
        y
            The ratings; None with a sparse matrix, or with implicit feedback for counts of 1.
        sample_weight
            Weights of ratings: the variance of the noise is divided by it. Not with implicit feedback.
        row_features, column_features
            Side information: a DataFrame indexed by id, a dict from ids to vectors, or a pair (ids, matrix); with a
            sparse matrix also an array with a line for each row or column. Rows that are only here are served too.
            Rows that are not here are taken to be average.
        """
        implicit, nuclear = self.feedback == "implicit", self.method == "nuclear"
        if nuclear and (implicit or row_features is not None or column_features is not None):
            raise ValueError("method='nuclear' takes explicit ratings without side information: use method='factors'")
        with unharmed(self):
            _check_feature_names(self, X, reset=True)
            given = _ratings.checked_ratings(X, y, sample_weight, implicit)
            row_side, column_side = self._side_information(given, row_features, column_features)
            rows, columns = IdIndex.of(given.rows, row_side.ids), IdIndex.of(given.columns, column_side.ids)
            kind = completion.Filled if nuclear else completion.Completed
            known = self.warm_start and isinstance(getattr(self, "_model", None), kind)
            known = known and np.array_equal(rows.ids, self.row_ids_) and np.array_equal(columns.ids, self.column_ids_)
            self._rows, self._columns, self.n_features_in_ = rows, columns, 2
            ratings = given.indexed(rows, columns)
            start = self._model if known else None
            self._learn(ratings, row_side.matrix(rows.ids), column_side.matrix(columns.ids), start)
            if not nuclear:
                _ratings.warn_of_poor_ratings(ratings, implicit)
        return self

    def _side_information(
        self, given: _ratings.GivenRatings, row_features: Any, column_features: Any, widths: Any = (None, None)
    ) -> list[_ratings.SideInformation]:
        parts = ("row", row_features, given.rows, widths[0]), ("column", column_features, given.columns, widths[1])
        return [_ratings.side_information(f"{name}_features", *part) for name, *part in parts]

    def _learn(
        self, ratings: completion.Ratings, row_side: np.ndarray, column_side: np.ndarray, start: Any = None
    ) -> None:
        implicit = self.feedback == "implicit"
        low, high = (-np.inf, np.inf) if implicit else _ratings.rating_range(self.bounds, ratings.values)
        problem: dict[str, Any] = {"low": low, "high": high, "held_out": float(self.validation_fraction)}
        seed = self._seed()
        max_iter, tol, verbose = int(self.max_iter), float(self.tol), bool(self.verbose)
        if self.method == "nuclear":
            relaxation = completion.Relaxation(**problem, rounds=max_iter, tol=tol, seed=seed)
            result = completion.relax(ratings, relaxation, verbose=verbose, start=start)
        else:
            # Counts are of all cells, and support twice as many factors.
            rank = int(self.rank or completion.FactorSettings.rank * (1 + implicit))
            settings = completion.FactorSettings(rank=rank, max_iter=max_iter, tol=tol, seed=seed)
            problem |= {"implicit": implicit, "confidence": float(self.confidence)}
            options = completion.Options(settings, bool(self.presence), **problem)
            result = completion.complete(ratings, row_side, column_side, options, verbose=verbose, start=start)
            self.elbo_ = float(result.history["bound"][-1])
        self._take(result.model)
        self.history_, self.n_iter_ = result.history, len(next(iter(result.history.values())))
        if result.status is Status.STEPS_SPENT and self.tol > 0:
            unit = "of the objective a round" if self.method == "nuclear" else "nats a rating"
            enough = f"sweeps were not enough to come within tol={self.tol:g} {unit}: raise one of them"
            warnings.warn(f"max_iter={self.max_iter} {enough}", ConvergenceWarning, stacklevel=3)

    def _trial_rows(self) -> Any:
        return [(self.row_ids_[row], self.column_ids_[column]) for row, column in ((0, 0), (-1, -1), (0, -1))]

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, row_features: Any = None, column_features: Any = None
    ) -> "MatrixCompletion":
        """Take in new ratings, of rows and columns known or new.

        The posteriors so far are the prior, and the steps those of ``fit``; priors and noise stay, and the cost depends
        on the new ratings alone. When there are half as many again as the last fit had, all are fitted anew. The first
        call is ``fit``. Parameters are as there.
        """
        if not hasattr(self, "_model"):
            return self.fit(X, y, sample_weight, row_features=row_features, column_features=column_features)
        with unharmed(self):
            self._validate_params()
            model = self._fitted("partial_fit after fit")
            implicit = bool(model.units.confidence)
            if implicit != (self.feedback == "implicit"):
                raise ValueError(f"feedback={self.feedback!r} after a fit with the other kind: call fit")
            if self.method == "nuclear":
                raise ValueError("method='nuclear' after a fit with method='factors': call fit")
            _check_feature_names(self, X, reset=False)
            given = _ratings.checked_ratings(X, y, sample_weight, implicit, empty=True)
            widths = model.rows.information.shape[1], model.columns.information.shape[1]
            row_side, column_side = self._side_information(given, row_features, column_features, widths)
            if len(given.values) and not implicit:
                _ratings.rating_range(self.bounds, given.values)
            before = model.ratings.shape
            self._rows = self._rows.extended(given.rows, row_side.ids)
            self._columns = self._columns.extended(given.columns, column_side.ids)
            ratings = given.indexed(self._rows, self._columns)
            if not implicit:
                _ratings.warn_of_repeated_ratings(model.ratings, ratings)
            new_sides = row_side.matrix(self._rows.ids[before[0] :]), column_side.matrix(self._columns.ids[before[1] :])
            model = completion.extended(model, ratings, *new_sides)
            # All fits together then cost at most three times the last one.
            if 2 * len(model.ratings.values) >= 3 * model.fitted:
                self._learn(model.ratings, model.rows.information, model.columns.information)
            else:
                self._take(completion.added(model, ratings))
        return self

    def _take(self, model: completion.Completed | completion.Filled) -> None:
        self._model = model
        self.row_ids_, self.column_ids_ = self._rows.ids, self._columns.ids
        if isinstance(model, completion.Filled):
            self.mean_ = model.centre
            return
        self.row_factors_ = model.rows.means[:-1, : model.rank]
        self.column_factors_ = model.columns.means[:-1, : model.rank]
        scale = model.units.scale
        self.row_biases_ = scale * model.rows.means[:-1, model.rank]
        self.column_biases_ = scale * model.columns.means[:-1, model.rank + 1]
        self.mean_, self.noise_ = model.units.centre, scale / float(np.sqrt(model.noise))
        self.strengths_ = model.strengths

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean rating of cells, with its standard deviation, noise included, if asked for.

        Rows and columns never seen have the mean and the spread of their kind.

        Parameters
        ----------
        X
            Ids of rows and columns, as in ``fit``; of a sparse matrix, its stored cells.
        return_std
            Whether to return the standard deviation of a new rating too.
        """
        model = self._fitted("return_std=True" if return_std else "")
        prediction = model.predict(*self._indices(X))
        return prediction[0] if isinstance(prediction, tuple) and not return_std else prediction

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends between which a new rating of each cell lies with probability ``level``, within the range of ratings.

        They are real numbers also where ratings are whole: a rating is covered if it is not outside them. The noise was
        learned from ratings as they are, so that their rounding is part of it.
        """
        level = arguments.real("level", level, above=0, below=1)
        return self._fitted("predict_interval").interval(*self._indices(X), level)

    def recommend(self, row: Any, n: int = 10, exclude_seen: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the columns with the highest predictions for a row, and these; the best on average for a row unseen.

        Parameters
        ----------
        row
            The id of one row.
        n
            How many; fewer come back where there are no more.
        exclude_seen
            Whether columns that the row has rated are left out.
        """
        model = self._fitted()
        if np.ndim(row):
            raise ValueError(f"row must be the id of one row, found {row!r}")
        index = int(self._rows.indices([row])[0])
        best, scores = model.recommend(index, arguments.whole("n", n), bool(exclude_seen))
        return self._columns.ids[best], scores

    def similar(self, column: Any, n: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the columns most like one, and the correlation, over rows, of what their factors add to ratings."""
        model = self._fitted()
        index = int(self._columns.indices([column])[0])
        if index < 0:
            raise ValueError(f"column must be an id that was seen, found {column!r}")
        best, correlations = model.similar(index, arguments.whole("n", n))
        return self._columns.ids[best], correlations

    def transform(self, X: Any, y: Any = None, row_features: Any = None) -> np.ndarray:
        """Factors of rows: of known ones by their ids, or of new ones from their ratings.

        Parameters
        ----------
        X
            Ids of known rows, one each, if ``y`` is None. Else ids of rows and columns as in ``fit``; the rows that
            occur are taken as new ones, in the order of their ids, and nothing is remembered of them.
        y
            The ratings.
        row_features
            Side information of the new rows.
        """
        model = self._fitted("transform")
        if y is None:
            indices = self._rows.indices(single_ids(X))
            return model.rows.means[np.where(indices < 0, model.rows.count, indices), : model.rank]
        given = _ratings.checked_ratings(X, y, None, bool(model.units.confidence))
        rows = IdIndex.of(given.rows)
        side = _ratings.side_information("row_features", row_features, given.rows, model.rows.information.shape[1])
        ratings = given.indexed(rows, self._columns)
        new = completion.vectors_of(model, ratings.part(ratings.columns >= 0), side.matrix(rows.ids))
        return np.asarray(new.means)[:, : model.rank]

    def ranking(self, X: Any, y: Any = None, k: int = 10, exclude_seen: bool = True) -> dict[str, float]:
        """How well the first ``k`` recommendations meet cells held out: mean NDCG@k and recall@k over their rows.

        NDCG is that of :func:`sklearn.metrics.ndcg_score`, with y, or 1 where that is None, as gains; recall is the
        share of a row's cells with a positive gain that are among the first k, of k if they are more than that.
        """
        model = self._fitted()
        row, column = self._indices(X)
        gains = np.ones(len(row)) if y is None else _ratings.checked_values("y", y, len(row))
        row, column, gains = (part[(row >= 0) & (column >= 0)] for part in (row, column, gains))
        return completion.ranking(model, row, column, gains, arguments.whole("k", k), bool(exclude_seen))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        tags.input_tags.sparse = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _fitted(self, purpose: str = "") -> Any:
        """What was learned, with posteriors if there is a purpose that needs them."""
        check_is_fitted(self)
        if purpose and isinstance(self._model, completion.Filled):
            raise ValueError(f"{purpose} needs posteriors, and method='nuclear' has none: use method='factors'")
        return self._model

    def _indices(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        if hasattr(X, "columns"):
            _check_feature_names(self, X, reset=False)
        rows, columns, _ = id_pairs(X)
        return self._rows.indices(rows), self._columns.indices(columns)

"""MatrixCompletion by the nuclear norm: what of the estimator differs where there are no posteriors."""

from typing import Any

from sklearn.utils import check_random_state

from thalweg import completion
from thalweg.models._ids import Names


def relaxed(
    model: Any, ratings: completion.Ratings, names: tuple[Names, Names], widths: list[int], bounds: tuple[float, float]
) -> completion.Settled:
    """Fit as the parameters of the estimator say, and set what it has learned."""
    if model.feedback == "implicit" or any(widths):
        raise ValueError("method='nuclear' takes explicit ratings without side information: use method='factors'")
    start = getattr(model, "_model", None) if model.warm_start else None
    if not isinstance(start, completion.Filled) or not (names[0].same(model._rows) and names[1].same(model._columns)):
        start = None
    options = completion.Relaxation(
        low=bounds[0],
        high=bounds[1],
        held_out=float(model.validation_fraction),
        rounds=int(model.max_iter),
        tol=float(model.tol),
        seed=int(check_random_state(model.random_state).randint(2**31 - 1)),
    )
    found = completion.relax(ratings, options, show=print if model.verbose else None, start=start)
    model._model, model.n_features_in_, model._sides = found.model, 2, widths
    model._rows, model._columns = names
    model.row_ids_, model.column_ids_ = names[0].ids, names[1].ids
    model.mean_ = found.model.centre
    model.history_, model.n_iter_ = found.history, len(found.history["objective"])
    return found


def with_posteriors(model: Any, what: str) -> completion.Completed:
    """A model that has them, or an error."""
    if isinstance(model, completion.Filled):
        raise ValueError(f"{what} needs posteriors, and method='nuclear' has none: use method='factors'")
    return model

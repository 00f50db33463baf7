"""Covariates of documents: a table of numbers, with names where it has any, brought to a common scale."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from thalweg.files import storable
from thalweg.models._inputs import no_dates


@storable
class CovariateScaling(NamedTuple):
    """Names, means and standard deviations of the covariates that a model was fitted with.

    Examples
    --------
    >>> scaling = CovariateScaling.of([1.0, 3.0], 2)
    >>> scaling.names, scaling.design([5.0], 1)
    (['x0'], array([[1., 3.]]))
    """

    names: list[str]
    centre: Float[np.ndarray, " p"]
    scales: Float[np.ndarray, " p"]

    @classmethod
    def of(cls, covariates: Any, rows: int) -> "CovariateScaling":
        """Learn them from a table with so many rows, or None."""
        table = _as_table(covariates, rows)
        names, scales = _names(covariates, table.shape[1]), table.std(axis=0)
        if np.any(flat := scales <= 1e-12 * np.abs(table).max(axis=0, initial=0)):
            raise ValueError(f"covariates must vary, found {names[np.argmax(flat)]!r} constant")
        return cls(names, table.mean(axis=0), scales)

    def design(self, covariates: Any, rows: int) -> Float[np.ndarray, "n q"]:
        """Return a 1 and the covariates in standard deviations for each row, or zeros where none are given."""
        if covariates is None:
            return np.column_stack([np.ones(rows), np.zeros((rows, len(self.names)))])
        table = _as_table(covariates, rows)
        if table.shape[1] != len(self.names):
            raise ValueError(f"covariates must have {len(self.names)} columns, found {table.shape[1]}")
        names, unnamed = (_names(each, len(self.names)) for each in (covariates, None))
        if unnamed not in (names, self.names) and names != self.names:
            raise ValueError(f"covariates must have the columns {self.names} in this order, found {names}")
        return np.column_stack([np.ones(rows), (table - self.centre) / self.scales])


def _as_table(covariates: Any, rows: int) -> Float[np.ndarray, "n p"]:
    """Return finite numbers in so many rows, without columns if there are none.

    >>> _as_table(["a", "b"], 2)
    Traceback (most recent call last):
        ...
    ValueError: covariates must be numbers, found could not convert string to float: 'a': encode words...
    """
    if covariates is None:
        return np.zeros((rows, 0))
    try:
        table = np.asarray(no_dates(covariates, "covariates"), np.float64)
    except ValueError as error:
        raise ValueError(f"covariates must be numbers, found {error}: encode words, as by OneHotEncoder") from None
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != rows:
        raise ValueError(f"covariates must have a row for each of {rows} documents, found shape {table.shape}")
    if not np.all(np.isfinite(table)):
        raise ValueError("covariates must be finite, found NaN or infinity")
    return table


def _names(covariates: Any, count: int) -> list[str]:
    """Return the names of the columns of a frame, that of a series, or x0, x1, … where there are none."""
    name = getattr(covariates, "name", None)
    unnamed = [f"x{column}" for column in range(count)] if name is None else [name]
    return [str(each) for each in getattr(covariates, "columns", unnamed)]

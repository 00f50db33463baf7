"""What is known of documents: a table of numbers, with names where it has any."""

from typing import Any

import numpy as np
from jaxtyping import Float

from thalweg.models._frames import no_dates


def checked(covariates: Any, rows: int) -> Float[np.ndarray, "n p"]:
    """Covariates as a table of finite numbers with so many rows; one without columns if there are none.

    Examples
    --------
    >>> checked([1, 2, 4], 3).shape, checked(None, 3).shape
    ((3, 1), (3, 0))
    >>> checked(["a", "b"], 2)
    Traceback (most recent call last):
        ...
    ValueError: covariates must be numbers, found could not convert string to float: 'a': encode words...
    """
    if covariates is None:
        return np.zeros((rows, 0))
    try:
        given = np.asarray(no_dates(covariates, "covariates"), np.float64)
    except ValueError as error:
        raise ValueError(f"covariates must be numbers, found {error}: encode words, as by OneHotEncoder") from None
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or len(given) != rows:
        raise ValueError(f"covariates must have a row for each of {rows} documents, found shape {given.shape}")
    if not np.all(np.isfinite(given)):
        raise ValueError("covariates must be finite, found NaN or infinity")
    return given


def names_of(covariates: Any) -> list[str] | None:
    """Those of the columns of a frame, or that of a series.

    Examples
    --------
    >>> import pandas
    >>> names_of(pandas.DataFrame({"year": [1990], "month": [5]})), names_of(pandas.Series([1990], name="year"))
    (['year', 'month'], ['year'])
    """
    if hasattr(covariates, "columns"):
        return [str(name) for name in covariates.columns]
    name = getattr(covariates, "name", None)
    return None if name is None else [str(name)]


def unnamed(columns: int) -> list[str]:
    """Names for columns without any.

    Examples
    --------
    >>> unnamed(2)
    ['x0', 'x1']
    """
    return [f"x{column}" for column in range(columns)]

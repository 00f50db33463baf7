"""scikit-learn's check of data, with errors that name the column of a frame."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data


def validated(model: Any, X: Any, *args: Any, **options: Any) -> Any:
    """What ``validate_data`` returns; where it refuses a frame, the error names the first column that is to blame.

    Examples
    --------
    >>> import pandas
    >>> from thalweg import GaussianGLM
    >>> frame = pandas.DataFrame({"age": [31.0, 42.0], "city": ["Rome", "Oslo"]})
    >>> validated(GaussianGLM(), frame)
    Traceback (most recent call last):
        ...
    ValueError: X holds 'Rome' in column 'city' (...), which is no finite number: ...
    """
    if hasattr(X, "columns") and options.get("dtype") == "numeric":
        options["dtype"] = [np.float64, np.float32]  # "numeric" lets the words of a category through
    try:
        return validate_data(model, no_dates(X), *args, **options)
    except (TypeError, ValueError) as error:
        found = _no_number(X) if hasattr(X, "columns") else ""
        if not found:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"X holds {found}, which is no finite number: encode it, fill it in or leave it out ({error})"
        ) from error


def no_dates(X: Any, name: str = "X") -> Any:
    """X, unless it has dates or durations: as numbers they are in a unit of their own, and later ones in another.

    Examples
    --------
    >>> no_dates(np.array([["2026-01-01"]], "datetime64[D]"))
    Traceback (most recent call last):
        ...
    TypeError: X must hold numbers, found datetime64[D]: give the days since a date, say
    """
    types: Any = getattr(X, "dtypes", getattr(X, "dtype", None))
    found = next((one for one in np.atleast_1d(types) if getattr(one, "kind", "") in ("m", "M")), None)
    if found is not None:
        raise TypeError(f"{name} must hold numbers, found {found}: give the days since a date, say")
    return X


def _no_number(frame: Any) -> str:
    """The first thing in a frame that is no finite number, in words; "" if there is none."""
    for name, column in frame.items() if hasattr(frame, "items") else ((name, frame[name]) for name in frame.columns):
        for value in np.asarray(column, dtype=object):
            if not _is_finite(value):
                return f"{value!r} in column {name!r} ({column.dtype})"
    return ""


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False

"""What estimators are given: features and targets, weights and numbers of rows, and errors that name what is wrong."""

import reprlib
import warnings
from collections import Counter
from numbers import Number
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import is_classifier
from sklearn.utils.validation import _check_sample_weight, validate_data

_MOST_ENTRIES = 2**27
"""Of a sparse matrix that is made dense: a gibibyte of them."""

LARGEST_NUMBER = 1e75
"""The largest number of a column, and the inverse of the smallest: searches take fourth powers of both."""

_MOST_EXAMPLES = 1e15
"""With more of them than float64 can count one by one, posteriors are narrower than it can tell."""


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
    unmasked("X", X)
    y = [_checked_targets(model, one) for one in args]
    if hasattr(X, "columns"):
        check_distinct(X.columns)
        if options.get("dtype") == "numeric":
            options["dtype"] = [np.float64, np.float32]  # "numeric" lets the words of a category through
    try:
        return validate_data(model, no_dates(X), *y, **options)
    except (TypeError, ValueError) as error:
        found = _no_number(X) if hasattr(X, "columns") else ""
        if not found:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"X holds {found}, which is no finite number: encode it, fill it in or leave it out ({error})"
        ) from error


def _checked_targets(model: Any, y: Any) -> Any:
    """Targets without gaps: labels of one type, or numbers.

    Examples
    --------
    >>> import pandas
    >>> from thalweg import BernoulliGLM, PoissonGLM
    >>> _checked_targets(PoissonGLM(), pandas.Series([1, 0], dtype="Int64")).dtype.kind  # NumPy would make floats of it
    'i'
    >>> _checked_targets(BernoulliGLM(), np.array([1, None], object))
    Traceback (most recent call last):
        ...
    ValueError: y must have no gaps, found None at index 1
    """
    unmasked("y", y)
    dtype = getattr(y, "dtype", np.dtype(object))
    if hasattr(dtype, "numpy_dtype") and not y.isna().any():
        y = y.to_numpy(dtype.numpy_dtype)
    objects = np.asarray(y if getattr(dtype, "kind", "O") == "O" and y is not None else (), object)
    gaps = [at for at, one in np.ndenumerate(objects) if one is None or (isinstance(one, float) and one != one)]
    if gaps:
        raise ValueError(f"y must have no gaps, found {objects[gaps[0]]} at index {', '.join(map(str, gaps[0]))}")
    if is_classifier(model):
        check_one_type("y", y)
    else:
        found = np.asarray(no_dates(y, "y"))
        words = [one for one in found.ravel() if isinstance(one, str)] if found.dtype.kind in "OUT" else []
        if words:
            raise ValueError(f"y must hold numbers, found {str(words[0])!r}")
    return y


def check_one_type(name: str, labels: Any) -> None:
    """Refuse labels of several types, which have no order, or of which NumPy would make words.

    Examples
    --------
    >>> check_one_type("y", ["a", 1])
    Traceback (most recent call last):
        ...
    ValueError: y must hold labels of one type, found numbers and str
    """
    given = labels if isinstance(labels, list | tuple) else np.asarray(labels)
    if isinstance(given, np.ndarray) and (given.dtype != object or given.ndim != 1):
        return
    kinds = {"numbers" if isinstance(one, Number | np.bool_) else type(one).__name__.rstrip("_") for one in given}
    if len(kinds) > 1:
        raise ValueError(f"{name} must hold labels of one type, found {' and '.join(sorted(kinds))}")


def check_distinct(columns: Any) -> None:
    """Refuse columns of which two have one name.

    Examples
    --------
    >>> check_distinct(["age", "size", "age"])
    Traceback (most recent call last):
        ...
    ValueError: X must have columns of different names, found 'age' 2 times
    """
    name, times = next(iter(Counter(columns).most_common(1)), ("", 0))
    if times > 1:
        raise ValueError(f"X must have columns of different names, found {name!r} {times} times")


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


def row_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """A weight for every row of ``X``: ones for None; refused if negative, or if nothing is left.

    Examples
    --------
    >>> row_weights([1.0, -2.0], np.zeros((2, 1)))
    Traceback (most recent call last):
        ...
    ValueError: sample_weight must be non-negative and not all 0, found a minimum of -2
    """
    unmasked("sample_weight", sample_weight)
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if not (np.all(weights >= 0) and np.any(weights > 0)):
        raise ValueError(f"sample_weight must be non-negative and not all 0, found a minimum of {weights.min():g}")
    return weights


def example_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """The weights of rows where they say how often each counts, so that their sum is a number of examples.

    Examples
    --------
    >>> example_weights([1e30, 1e30], np.zeros((2, 1)))
    Traceback (most recent call last):
        ...
    ValueError: sample_weight says how often each row counts, and must add up to 1e+15 at most, found 2e+30
    """
    weights = row_weights(sample_weight, X)
    if (total := float(np.sum(weights))) > _MOST_EXAMPLES:
        most = f"must add up to {_MOST_EXAMPLES:g} at most, found {total:g}"
        raise ValueError(f"sample_weight says how often each row counts, and {most}")
    return weights


def warn_of_little_weight(weights: np.ndarray) -> None:
    """Warn where several rows count for less than two: weights may have been scaled to add up to 1."""
    if (total := float(np.sum(weights))) < min(2, len(weights)):
        message = (
            f"sample_weight says how often each row counts, and adds up to {total:.2g}: hardly anything is learned"
        )
        warnings.warn(f"{message}. If its unit means nothing, divide it by its mean", UserWarning, stacklevel=5)


def row_numbers(name: str, value: Any, count: int, above: float = -np.inf, least: float = -np.inf) -> np.ndarray:
    """A finite number for every row, 0 for None, or an error that says what is wrong."""
    unmasked(name, value)
    found = np.asarray(0.0 if value is None else value)
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold numbers, found {reprlib.repr(value)}")
    if found.shape not in ((), (count,)):
        raise ValueError(
            f"{name} must be a number or have shape ({count},), one for each row, found shape {found.shape}"
        )
    found = np.broadcast_to(found.astype(np.float64), count)
    if np.any(wrong := ~(np.isfinite(found) & (found > above) & (found >= least))):
        limit = f" above {above:g}" if np.isfinite(above) else f" of at least {least:g}" if np.isfinite(least) else ""
        raise ValueError(f"{name} must hold finite numbers{limit}, found {found[wrong][0]:g}")
    return found


def check_sizes(name: str, array: np.ndarray, least: float = 1 / LARGEST_NUMBER) -> None:
    """Refuse numbers whose powers overflow, and columns whose largest number is below the least: powers of it are 0.

    Examples
    --------
    >>> check_sizes("X", np.array([[1.0, 1e-200]]))
    Traceback (most recent call last):
        ...
    ValueError: X must hold numbers of at most 1e+75, in each column one of at least 1e-75 or 0 alone, found ...
    """
    if np.issubdtype(array.dtype, np.floating):
        sizes = np.atleast_1d(np.max(np.abs(array), axis=0, initial=0.0)).astype(float)
        if np.any(wrong := (sizes > LARGEST_NUMBER) | ((sizes > 0) & (sizes < least))):
            most = f"{LARGEST_NUMBER:g}" + (f", in each column one of at least {least:g} or 0 alone" if least else "")
            found = f"{sizes[wrong][0]:g}" + (f" in column {np.argmax(wrong)}" if array.ndim == 2 else "")
            raise ValueError(f"{name} must hold numbers of at most {most}, found {found}: take other units")


def unmasked(name: str, array: Any) -> None:
    """Refuse masked arrays that hide something: what is hidden would be taken for data."""
    if np.ma.is_masked(array):
        raise ValueError(
            f"{name} must hide nothing, found a masked array with {np.ma.count_masked(array)} hidden entries"
        )


def dense(X: Any) -> np.ndarray:
    """The rows as an array; refused if they are sparse and too many."""
    if not issparse(X):
        return X
    if X.shape[0] * X.shape[1] > _MOST_ENTRIES:
        raise ValueError(
            f"X is sparse, and would take {X.shape[0] * X.shape[1] / 2**27:.1f} GiB as the dense matrix needed: "
            f"pass batches of rows, to partial_fit for learning, or choose fewer features"
        )
    return X.toarray()

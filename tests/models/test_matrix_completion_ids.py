"""Ids of rows and columns that NumPy would mix up, and ratings that are too large or too small for their squares."""

from datetime import date

import numpy as np
import pandas
import pytest

from thalweg import MatrixCompletion
from thalweg.models._ids import IdIndex, as_ids

FAST = {"rank": 1, "presence": False, "max_iter": 60, "tol": 0.01, "random_state": 0}
rng = np.random.default_rng(0)
ROWS, COLUMNS = rng.integers(0, 9, size=(2, 60))
STARS = ROWS - 4.0 + 0.1 * rng.normal(size=60)


@pytest.fixture(scope="module")
def plain():
    """A model of short ids."""
    return MatrixCompletion(**FAST).fit(np.column_stack([ROWS, COLUMNS]), STARS)


@pytest.mark.parametrize("least", [2**53, 2**62, 2**63 - 4, 2**63])
@pytest.mark.parametrize("half", [0, 0.5])
def test_long_ids_beside_others_stay_apart(plain, least, half):
    known = plain.predict([(row, 3) for row in range(9)])
    cells = [(least + int(row), column + half) for row, column in zip(ROWS, COLUMNS, strict=True)]
    model = MatrixCompletion(**FAST).fit(cells, STARS)
    assert model.row_ids_.tolist() == [least + row for row in range(9)]
    for row in range(9):
        np.testing.assert_allclose(model.predict([(least + row, 3 + half)]), known[row : row + 1], atol=1e-4)
    np.testing.assert_array_equal(model.recommend(least + 1, 3, exclude_seen=False)[0] - half < 9, True)


def test_long_ids_may_come_after_short_ones():
    short, long = ROWS < 5, ROWS >= 5
    cells = [(2**63 * int(row >= 5) + int(row), int(column)) for row, column in zip(ROWS, COLUMNS, strict=True)]
    model = MatrixCompletion(**FAST).fit(np.column_stack([ROWS, COLUMNS])[short], STARS[short])
    model.partial_fit([cell for cell, later in zip(cells, long, strict=True) if later], STARS[long])
    assert sorted(model.row_ids_.tolist()) == [0, 1, 2, 3, 4, *(2**63 + row for row in range(5, 9))]
    with pytest.raises(ValueError, match=r"ids must be whole numbers of 64 bits, found -1 to 9223372036854775816"):
        model.partial_fit([(-1, 2)], [1.0])
    seen, unseen = model.predict([(3, 3), (-(2**63) + 6, 3)])
    assert seen != unseen == model.predict([(77, 3)])[0]


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        (np.array([[2.0**60, 1.0], [2.0**60 + 1, 2.0]]), r"floating-point numbers of 2\*\*53 or more"),
        ([(2**64, 1), (2, 2)], r"whole numbers of 64 bits, found 2 to 18446744073709551616: give longer ones as words"),
        ([(2**63, 1), (-2, 2)], "whole numbers of 64 bits, found -2"),
        ([("a", 1), (2, 2)], "all numbers or all words, found 2"),
        ([3, 4], r"shape \(n, 2\), ids of rows and of columns, found shape \(2,\)"),
        ([3, (4, 5)], "pairs of ids, of a row and of a column, found 3 first"),
        ([(1, 2), (4, 5, 6)], r"pairs of ids, of a row and of a column, found \(1, 2\) first"),
    ],
)
def test_ids_that_cannot_be_told_apart_are_refused(plain, cells, match):
    with pytest.raises((ValueError, TypeError), match=match):
        MatrixCompletion(**FAST).fit(cells, [1.0, 2.0])
    with pytest.raises((ValueError, TypeError), match=match):
        plain.predict(cells)


def test_frames_keep_long_ids_of_either_kind(plain):
    frame = pandas.DataFrame({"row": ROWS.astype(np.uint64) + np.uint64(2**63), "column": COLUMNS})
    model = MatrixCompletion(**FAST).fit(frame, STARS)
    some = pandas.DataFrame({"row": [2**63 + 4, 5], "column": [3, 3]})
    np.testing.assert_allclose(model.predict(some)[0], plain.predict([(4, 3)])[0], atol=1e-4)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_ratings_and_features_whose_squares_are_no_numbers_are_refused(size):
    cells = np.column_stack([ROWS, COLUMNS])
    with pytest.raises(
        ValueError,
        match=r"y must hold numbers of at most 1e\+75, in each column one of at least 1e-75 or 0 alone, found",
    ):
        MatrixCompletion(**FAST).fit(cells, STARS * size)
    with pytest.raises(
        ValueError,
        match=r"row_features must hold numbers of at most 1e\+75, in each column one of at least 1e-75",
    ):
        MatrixCompletion(**FAST).fit(cells, STARS, row_features=np.arange(9.0)[:, None] * size)


def test_factors_are_of_rows_and_pairs_need_ratings(plain):
    long = MatrixCompletion(**FAST).fit([(2**63 * int(row > 4) + int(row), 3) for row in ROWS], STARS)
    np.testing.assert_array_equal(long.transform([2**63 + 6, 2]), long.row_factors_[[6, 2]])
    np.testing.assert_array_equal(plain.transform(np.array([[6], [2]])), plain.row_factors_[[6, 2]])
    with pytest.raises(
        ValueError, match=r"ids of rows, one each, where y is None, found shape \(2, 2\): pairs come with"
    ):
        plain.transform([(0, 4), (0, 9)])


def test_a_second_fit_predicts_the_same_bits():
    model, pairs = MatrixCompletion(**FAST), np.column_stack([ROWS, COLUMNS])
    first = model.fit(pairs, STARS).predict(pairs)
    np.testing.assert_array_equal(model.fit(pairs, STARS).predict(pairs), first)


def test_a_date_is_the_same_id_in_every_unit_and_kind():
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "datetime64[D]")
    index = IdIndex.of(as_ids("X", days.astype("datetime64[ns]")))
    for asked in (days[1:2], days[1:2].astype("datetime64[s]"), [date(2020, 1, 2)], [pandas.Timestamp("2020-01-02")]):
        assert index.indices(asked).tolist() == [1]
    assert index.indices(np.array(["9999-01-01"], "datetime64[D]")).tolist() == [-1]
    for missing in (np.array(["NaT"], "datetime64[ns]"), [pandas.NaT]):
        with pytest.raises(ValueError, match="must not be missing, found NaT"):
            as_ids("X", missing)
    with pytest.raises(ValueError, match="whole microseconds"):
        as_ids("X", np.array([1], "datetime64[ns]"))

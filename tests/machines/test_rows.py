"""Examples that are read batch by batch: dense, sparse, from a file, with labels or numbers, with padding."""

import numpy as np
import pytest
import scipy.sparse

from thalweg.machines.rows import Rows

X = np.arange(14.0).reshape(7, 2) * (np.arange(14).reshape(7, 2) % 3 > 0)
Y = np.arange(7.0)[:, None]
W = np.arange(1.0, 8.0)


@pytest.mark.parametrize(
    "kind", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csr_array], ids=lambda k: k.__name__
)
def test_batches_are_rows_and_padding(kind):
    rows = Rows(kind(X), Y, W)
    batch = rows.batch(np.array([5, 0]), size=4, dtype=np.float32)
    np.testing.assert_array_equal(batch.x, [X[5], X[0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(batch.y[:2], Y[[5, 0]])
    np.testing.assert_array_equal(batch.weights, [6, 1, 0, 0])
    assert {part.dtype for part in batch} == {np.dtype(np.float32)}
    stacked = rows.stack(np.arange(7), size=3, dtype=np.float64)
    assert stacked.x.shape == (3, 3, 2)
    np.testing.assert_array_equal(stacked.x.reshape(9, 2)[:7], X)
    np.testing.assert_array_equal(stacked.weights, [[1, 2, 3], [4, 5, 6], [7, 0, 0]])
    part = rows.subset(np.array([1, 6]))
    np.testing.assert_array_equal(part.features(slice(None), float), X[[1, 6]])
    np.testing.assert_array_equal(part.weights, [2, 7])


def test_labels_become_rows_of_the_table_and_padding_has_a_target_of_it():
    table = 2 * np.eye(3) - 1
    batch = Rows(X, np.array([2, 0, 1, 1, 0, 2, 2]), W, table).batch(np.array([1, 3]), size=3, dtype=float)
    np.testing.assert_array_equal(batch.y[:2], table[[0, 1]])
    assert batch.y[2].tolist() in table.tolist()


def test_only_the_rows_of_a_batch_are_read():
    class Watched(np.ndarray):
        def __getitem__(self, index):
            if not isinstance(index, np.ndarray) or len(index) > 2:
                raise AssertionError(f"read {index}")
            return np.asarray(self)[index]

    rows = Rows(X.view(Watched), Y, W)
    np.testing.assert_array_equal(rows.stack(np.arange(6), size=2, dtype=float).x.reshape(6, 2), X[:6])
    with pytest.raises(AssertionError, match="read slice"):
        rows.features(slice(None), float)


def test_a_slice_has_all_copies_of_a_row_or_none():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=(300, 1))
    copied = np.tile(np.arange(300), 4)
    rows = Rows(1e8 + x[copied], y[copied], np.ones(1200), offset=np.full(3, 1e8))
    order = rows.shuffled(1)
    assert sorted(order) == list(range(1200))
    assert np.all(copied[order].reshape(300, 4) == copied[order][::4, None])
    # Drawn with replacement many have none, but no two rows would meet by chance.
    drawn = rng.integers(0, 300, 500)
    order = Rows(x[drawn], y[drawn], np.ones(500)).shuffled(1)
    assert np.sum(np.diff(drawn[order]) != 0) + 1 == len(np.unique(drawn))
    # Values seen at one place again are no copies if they differ, and where there are few values rows meet by chance.
    again = Rows(x[copied], rng.normal(size=(1200, 1)), np.ones(1200))
    whole = rng.integers(0, 25, size=(560, 2)).astype(float)
    for other in (again, Rows(whole, whole[:, :1], np.ones(560))):
        assert np.array_equal(other.shuffled(1), np.random.default_rng(1).permutation(len(other)))


def test_values_far_out_grow_as_logarithms_and_the_others_stay():
    x = np.array([[-3.0], [5.0], [5.0 + 1e-6], [50.0], [500.0]])
    rows = Rows(x, np.zeros((5, 1)), np.ones(5), offset=np.zeros(1), far=np.array([5.0]))
    found = rows.features(slice(None), float)[:, 0]
    np.testing.assert_allclose(found, [-3, 5, 5 + 1e-6, 5 + np.log1p(45), 5 + np.log1p(495)], rtol=1e-12)
    np.testing.assert_array_equal(rows.subset(np.array([4])).features(slice(None), float), [found[4:]])
    assert x[4] == 500  # those of the user are as they were


def test_copies_are_merged_and_rows_that_only_look_alike_are_not():
    """Those that differ across the one direction in which they are compared, and by less than its digits."""
    x = np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 2.0], [1.0, 2.0 + 1e-12], [0.0, 5.0]])
    rows = Rows(x, np.array([0, 1, 1, 0, 1]), np.array([1.0, 1.0, 3.0, 1.0, 1.0]), table=np.array([[-1.0], [1.0]]))
    merged = rows.merged(np.arange(5), np.float64)
    np.testing.assert_array_equal(merged.x, x[[0, 1, 3]])
    np.testing.assert_array_equal(merged.targets, [[0.5], [1.0], [-1.0]])
    np.testing.assert_array_equal(merged.weights, [4, 2, 1])
    framed = rows.framed(np.array([1.0, 0.0])).merged(np.array([4, 3]), np.float32)
    np.testing.assert_array_equal(framed.features(slice(None), np.float32), np.float32([[-1, 5], [0, 2]]))

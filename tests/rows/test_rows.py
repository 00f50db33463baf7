"""Tables of examples: frames, duplicates, splits and batches."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from thalweg.rows import (
    FeatureFrame,
    Table,
    duplicates_are_copies,
    find_duplicates,
    fit_frame,
    random_order,
)


def _table(x, targets=None, **options):
    x = np.asarray(x, float)
    return Table(x, np.zeros((len(x), 1)) if targets is None else targets, np.ones(len(x)), **options)


def test_frame_does_not_depend_on_offsets_and_follows_units():
    x = np.random.default_rng(0).normal(size=(500, 3))
    plain, moved = fit_frame(x), fit_frame(x * 1e6 + 1e9)
    assert np.allclose(plain.apply(x) * 1e6, moved.apply(x * 1e6 + 1e9), rtol=1e-6, atol=1e-3)


def test_values_far_out_grow_as_logarithms_and_keep_their_order():
    x = np.random.default_rng(0).normal(size=(500, 1))
    frame = fit_frame(x)
    new = np.array([[1.0], [4.0], [10.0], [1e3], [1e6], [1e12], [-1e12]])
    framed = frame.apply(new)[:, 0]
    assert np.allclose(framed[:2], (new - frame.centre)[:2, 0])
    assert np.all(np.diff(framed[:-1]) > 0)
    assert framed[5] < 40
    assert np.isclose(framed[6], -framed[5], rtol=1e-2)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4])
def test_a_code_for_missing_values_does_not_hide_the_others(share):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((2000, 1)) < share, -999.0, rng.normal(size=(2000, 1)))
    framed = fit_frame(x).apply(x)
    ordinary = framed[x[:, 0] != -999]
    assert np.std(ordinary) > 0.8
    assert np.abs(framed).max() < 100  # a tenth of how far out they were


def test_feature_of_mostly_one_value_is_left_as_it_is():
    x = np.where(np.arange(100) < 80, 0.0, 1e4 * np.arange(100.0))[:, None]
    assert np.array_equal(fit_frame(x).apply(x), x)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 10_000))
def test_duplicates_are_exactly_the_equal_rows(rows, features, seed):
    x = np.random.default_rng(seed).integers(0, 3, size=(rows, features)).astype(float)
    first, group = find_duplicates(x)
    distinct = np.unique(x, axis=0)
    assert len(first) == len(distinct)
    assert np.array_equal(x[first[group]], x)
    assert np.all(np.diff(first) > 0)


def test_rows_that_differ_in_the_last_digit_are_not_merged():
    x = np.array([[1.0, 2.0], [1.0, np.nextafter(2.0, 3.0)], [1.0, 2.0]])
    assert find_duplicates(x).group.tolist() == [0, 1, 0]


def test_bootstrapped_rows_are_copies_and_repeated_codes_are_not():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=(300, 1))
    some = rng.integers(0, 300, size=600)
    found = find_duplicates(x[some])
    assert duplicates_are_copies(x[some][found.first], y[some], found)
    codes = rng.integers(0, 5, size=(600, 2)).astype(float)
    truth = codes.sum(axis=1, keepdims=True)
    found = find_duplicates(codes)
    assert not duplicates_are_copies(codes[found.first], truth + rng.normal(size=(600, 1)), found)
    assert not duplicates_are_copies(codes[found.first], truth, found)


def test_copies_stay_together_when_rows_are_shuffled():
    x = np.repeat(np.random.default_rng(0).normal(size=(100, 2)), 3, axis=0)
    order = _table(x, x[:, :1]).shuffled(7)
    assert sorted(order) == list(range(300))
    shuffled = x[order].reshape(100, 3, 2)
    assert np.all(shuffled == shuffled[:, :1])


def test_order_depends_on_the_seed_alone():
    assert np.array_equal(random_order(50, [3, 1]), random_order(50, [3, 1]))
    assert not np.array_equal(random_order(50, [3, 1]), random_order(50, [3, 2]))


def test_merged_rows_have_the_mean_target_and_the_total_weight():
    table = Table(np.array([[1.0], [2.0], [1.0]]), np.array([[3.0], [0.0], [6.0]]), np.array([1.0, 1.0, 2.0]))
    merged = table.merged(np.arange(3), float)
    assert merged.x.tolist() == [[1.0], [2.0]]
    assert merged.targets.tolist() == [[5.0], [0.0]]
    assert merged.weights.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("kind", ["array", "sparse", "memory map"])
def test_every_source_gives_the_same_batches(kind, tmp_path):
    x = np.where(np.random.default_rng(0).random((20, 4)) < 0.5, 0.0, 1.5)
    source = x
    if kind == "sparse":
        source = scipy.sparse.csr_array(x)
    if kind == "memory map":
        np.save(tmp_path / "x.npy", x)
        source = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = Table(source, np.arange(20) % 2, np.ones(20), codes=np.array([[-1.0], [1.0]]))
    table = table.with_frame(FeatureFrame(centre=np.full(4, 0.5), metric=np.full(4, 2.0)))
    batches = table.stack(np.arange(20), 8, np.float32)
    assert batches.x.shape == (3, 8, 4)
    assert np.allclose(batches.x.reshape(-1, 4)[:20], 2 * (x - 0.5))
    assert batches.weights.sum() == 20
    assert np.array_equal(batches.y[0, :, 0], np.where(np.arange(8) % 2, 1, -1))


def test_rows_chosen_by_an_index_are_read_when_they_are_asked_for():
    table = _table(np.arange(10.0)[:, None], np.arange(3.0)[:, None], index=np.array([9, 4, 7]))
    table = Table(table.x, table.targets, np.ones(3), index=table.index)
    assert table.features(slice(None), float).ravel().tolist() == [9.0, 4.0, 7.0]
    assert table.subset(np.array([2])).x.tolist() == [[7.0]]


def test_error_is_in_the_unit_of_the_user():
    labels = Table(np.zeros((2, 1)), np.array([0, 1]), np.array([1.0, 3.0]), codes=np.eye(2))
    assert labels.error(np.array([[1.0, 0.0], [1.0, 0.0]])) == 0.75
    numbers = Table(np.zeros((2, 1)), np.zeros((2, 1)), np.ones(2), scale=10.0)
    assert numbers.error(np.array([[3.0], [4.0]])) == pytest.approx(10 * np.sqrt(12.5))

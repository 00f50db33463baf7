"""Products with a kernel's matrix by tiles."""

import numpy as np
import pytest

from thalweg.kernels import Gaussian, Matern12, Matern32, Matern52, profiles
from thalweg.machines import tiles
from thalweg.machines.rows import same

rng = np.random.default_rng(0)


@pytest.mark.parametrize("family", [Gaussian, Matern12, Matern32, Matern52])
def test_float32_is_as_accurate_as_it_can_be(family):
    squares = np.concatenate([[-1e-9, 0.0], np.geomspace(1e-6, 4000, 500)])[None].astype(np.float32)
    kernel = family(variance=2.0)
    fine = [part[0] for part in profiles.value_and_rise(kernel, squares.astype(np.float64))]
    coarse = [part[0] for part in profiles.value_and_rise(kernel, squares.copy())]
    r = np.sqrt(np.maximum(squares[0].astype(np.float64), 0))
    # A rounded distance moves the value by this many units in the last place.
    units = np.finfo(np.float32).eps * (4 + 3 * np.minimum(np.maximum(r, r**2), 100))
    for one, other in zip(coarse, fine, strict=True):
        assert np.all(np.abs(one - other) <= units * np.abs(other))


def test_of_equal_rows_one_is_evaluated(monkeypatch):
    evaluated, profile = [], tiles.value_and_rise
    counted = lambda kernel, squares, rise: evaluated.append(len(squares)) or profile(kernel, squares, rise)
    monkeypatch.setattr(tiles, "value_and_rise", counted)
    kinds, y, weights = rng.normal(size=(16, 3)), rng.normal(size=(10, 3)), rng.normal(size=(10, 2))
    chosen = rng.integers(16, size=10_000)
    found = tiles.product(Matern52(), kinds[chosen], y, weights)
    assert sum(evaluated) == 16
    np.testing.assert_allclose(found, (np.asarray(Matern52()(kinds, y)) @ weights)[chosen], rtol=1e-5)


def test_rows_that_differ_are_never_taken_for_one():
    x = np.zeros((5, 2), np.float32)
    x[1:3, 0], x[4, 0] = 1e-30, np.finfo(np.float32).max
    first, place = same(x)
    np.testing.assert_array_equal(x[first[place]], x)
    assert place[0] == place[3]

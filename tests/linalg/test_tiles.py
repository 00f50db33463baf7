"""Matrices in tiles: products and entries are those of the matrix, stored or not, and each entry is made once."""

import numpy as np
import pytest

from thalweg.linalg.tiles import TILE_COLUMNS, TILE_ROWS, Tiles

SIZES = [1, TILE_ROWS + 1, TILE_COLUMNS + TILE_ROWS + 5]


def hilbert(rows, columns, asymmetric=0.0):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(columns.start, columns.stop)[None, :]
    return 1 / (1.0 + np.abs(i - j)) + asymmetric * i


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stored", [False, True])
def test_products_and_entries_of_a_symmetric_matrix(size, stored):
    whole = hilbert(slice(0, size), slice(0, size))
    tiles = Tiles(hilbert, (size, size), float, symmetric=True, stored=stored)
    block = np.random.default_rng(0).normal(size=(size, 2))
    np.testing.assert_allclose(tiles.apply(block), whole @ block, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(tiles.to_dense(), whole)


def test_products_and_entries_of_a_rectangular_matrix():
    shape = 2 * TILE_ROWS + 3, TILE_COLUMNS + 7
    entries = lambda rows, columns: hilbert(rows, columns, asymmetric=0.1)
    whole, tiles = entries(slice(0, shape[0]), slice(0, shape[1])), Tiles(entries, shape, float)
    block = np.random.default_rng(0).normal(size=(shape[1], 3))
    np.testing.assert_allclose(tiles.apply(block), whole @ block, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(tiles.to_dense(), whole)


def test_products_have_the_precision_of_the_entries():
    entries = lambda rows, columns: hilbert(rows, columns).astype(np.float32)
    for stored in (False, True):
        tiles = Tiles(entries, (70, 70), np.float32, symmetric=True, stored=stored)
        assert tiles.apply(np.ones((70, 1))).dtype == tiles.to_dense().dtype == np.float32


@pytest.mark.parametrize("stored", [True, False])
def test_each_pair_of_entries_of_a_symmetric_matrix_is_made_once(stored):
    """But for the tiles on the diagonal, which are made whole."""
    size, made = 4 * TILE_COLUMNS, []

    def entries(rows, columns):
        made.append((rows.stop - rows.start) * (columns.stop - columns.start))
        return np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.float32)

    tiles = Tiles(entries, (size, size), np.float32, symmetric=True, stored=stored)
    if not stored:
        tiles.to_dense()
    assert size**2 / 2 < sum(made) <= size**2 / 2 + 4 * TILE_COLUMNS**2 / 2
    if stored:
        made.clear()
        tiles.apply(np.ones((size, 1), np.float32))
        assert not made


def test_an_error_in_a_tile_is_raised():
    def entries(rows, columns):
        raise ValueError("no such rows")

    with pytest.raises(ValueError, match="no such rows"):
        Tiles(entries, (5 * TILE_ROWS, 10), float).apply(np.ones((10, 1)))

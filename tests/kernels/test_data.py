"""What connects kernels with data: the median distance, files, and how kernels are shown."""

import json

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from thalweg import codec
from thalweg.errors import FileFormatError
from thalweg.kernels import (
    Cauchy,
    Gaussian,
    Laplacian,
    Matern12,
    Matern32,
    Matern52,
    median_distance,
)

KEY = jax.random.key(0)
positive = st.floats(1e-3, 1e3)


def test_the_median_of_all_pairs():
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.testing.assert_allclose(median_distance(x, KEY, sample=1000), np.median(pdist(x)), rtol=1e-12)


def test_a_sample_of_pairs_comes_close():
    x = np.random.default_rng(1).normal(size=(700, 3))
    exact = pdist(x)
    # The standard error of a median is 1/(2·f·√n), with f the density there; f·spread is about 0.4 as for a normal law.
    error = 1.25 * exact.std() / np.sqrt(2000)
    assert abs(median_distance(x, KEY) - np.median(exact)) < 5 * error
    assert median_distance(x, KEY) == median_distance(x, KEY)


def test_sparse_points_have_the_distances_of_dense_ones():
    x = scipy.sparse.random_array((300, 50), density=0.1, rng=np.random.default_rng(2))
    np.testing.assert_allclose(median_distance(x, KEY), median_distance(x.toarray(), KEY), rtol=1e-12)
    np.testing.assert_allclose(median_distance(x.tocoo(), KEY), median_distance(x.toarray(), KEY), rtol=1e-12)


def test_equal_points_do_not_count():
    x = np.array([[0.0]] * 20 + [[3.0]])
    assert median_distance(x, KEY) == 3.0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((5, 2)), "x must have points that differ, found 10 pairs of equal rows"),
        (np.array([[0.0], [np.nan], [1.0]]), "x must be finite"),
        (np.ones((1, 2)), r"at least two points, one per row, found shape \(1, 2\)"),
        (np.ones(4), r"found shape \(4,\)"),
    ],
)
def test_bad_points(x, message):
    with pytest.raises(ValueError, match=message):
        median_distance(x, KEY)


@settings(deadline=None)
@given(
    st.sampled_from([Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy]),
    positive | st.lists(positive, min_size=1, max_size=4).map(np.array),
    positive,
)
def test_a_kernel_survives_a_file(kind, lengthscale, variance):
    kernel, arrays = kind(lengthscale, variance), {}
    again = codec.decode(json.loads(json.dumps(codec.encode(kernel, (), arrays))), (), arrays)
    assert type(again) is kind
    np.testing.assert_array_equal(again.lengthscale, kernel.lengthscale)
    np.testing.assert_array_equal(again.variance, kernel.variance)


@pytest.mark.parametrize("parameters", [{"lengthscale": "1"}, {"lengthscale": -1.0}, {"variance": True}, {"power": 2}])
def test_a_kernel_that_could_not_be_made_is_not_read(parameters):
    stored = {"object": "Gaussian", "from": [list(item) for item in parameters.items()], "jax": []}
    with pytest.raises(FileFormatError, match="not a Gaussian"):
        codec.decode(stored, (), {})


def test_kernels_are_shown_as_they_are_written():
    assert repr(Gaussian(0.5, 2.0)) == "Gaussian(lengthscale=0.5, variance=2)"
    assert repr(Matern32([0.5, 1.25])) == "Matern32(lengthscale=[0.5, 1.25], variance=1)"
    assert repr(Cauchy(np.linspace(1, 2, 101))) == "Cauchy(lengthscale=[1, 1.01, 1.02, 1.03, …, 2], variance=1)"
    shown = []
    jax.jit(lambda kernel: shown.append(repr(kernel)))(Gaussian())
    assert shown[0].startswith("Gaussian(lengthscale=")

"""Spectral densities against Fourier integrals, and frequencies against their laws."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from thalweg.errors import IncompatiblePartsError
from thalweg.kernels import Cauchy, Gaussian, Laplacian, Matern12, Matern32, Matern52

KERNELS = [Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy]


def panels(count=800, end=80.0):
    """Nodes and weights on (0, end), by Gauss–Legendre on panels."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    width = end / count
    return (width * (np.arange(count)[:, None] + (nodes + 1) / 2)).ravel(), np.tile(weights * width / 2, count)


NODES, WEIGHTS = panels()
FREQUENCIES = np.array([0.0, 0.2, 1.0, 3.7])
DISTANCES = np.array([0.0, 0.4, 1.0, 2.5])


def cosine_integral(values, frequencies):
    """2·∫ f(t)·cos(frequency·t) dt, by the values of f at the nodes."""
    return 2 * np.cos(np.outer(frequencies, NODES)) @ (WEIGHTS * np.asarray(values))


@cache
def on_a_line():
    """Correlations at the nodes and densities at the frequencies, and for Cauchy's the reverse: one program for all."""

    @jax.jit
    def evaluate(kernels, nodes, frequencies, distances):
        correlation = lambda kernel, r: kernel(r[:, None], jnp.zeros((1, 1)))[:, 0]
        density = lambda kernel, w: kernel.spectral_density(w[:, None])
        found = [(correlation(kernel, nodes), density(kernel, frequencies)) for kernel in kernels[:-1]]
        return [*found, (correlation(kernels[-1], distances), density(kernels[-1], nodes))]

    kinds = [Gaussian, Matern12, Matern32, Matern52, Laplacian, Cauchy]
    found = evaluate([kind(1.3) for kind in kinds], NODES, FREQUENCIES, DISTANCES)
    return dict(zip(kinds, found, strict=True))


@pytest.mark.parametrize("kind", [Gaussian, Matern12, Matern32, Matern52, Laplacian])
def test_the_density_is_the_fourier_transform_on_a_line(kind):
    # p(ω) = ∫ρ(r)·cos(ωr) dr / 2π: the direction in which the integrand falls off exponentially.
    correlations, densities = on_a_line()[kind]
    np.testing.assert_allclose(densities, cosine_integral(correlations, FREQUENCIES) / (2 * np.pi), rtol=1e-8)


def test_the_kernel_is_the_fourier_transform_of_the_density_on_a_line():
    correlations, densities = on_a_line()[Cauchy]
    np.testing.assert_allclose(cosine_integral(densities, DISTANCES), correlations, rtol=1e-8)


def test_kernels_are_the_means_of_cosines_under_their_densities():
    # Importance sampling from a mixture whose tails are heavier than those of any of the laws.
    draws, dimension = 200_000, 2
    lengths = np.array([0.7, 1.3])
    rng = np.random.default_rng(0)
    product = rng.standard_cauchy((draws // 2, dimension))
    radial = rng.normal(size=(draws // 2, dimension)) / np.abs(rng.normal(size=(draws // 2, 1)))
    omega = np.concatenate([product, radial])
    law = (stats.cauchy.pdf(omega).prod(1) + stats.multivariate_t.pdf(omega, df=1, shape=np.eye(dimension))) / 2
    differences = np.array([[0.0, 0.0], [0.5, 0.0], [0.3, -0.9], [1.5, 1.0]])
    cosines = np.cos((omega / lengths) @ differences.T)
    kernels = [kind(lengths) for kind in KERNELS]
    both = lambda kernel, w, x: (kernel.spectral_density(w), kernel(x, jnp.zeros((1, dimension)))[:, 0])
    evaluate = jax.jit(lambda kernels, w, x: [both(kernel, w, x) for kernel in kernels])
    evaluated = evaluate(kernels, omega / lengths, differences)
    for kind, (density, exact) in zip(KERNELS, evaluated, strict=True):
        ratio = np.asarray(density) / (law * lengths.prod())
        terms = ratio[:, None] * cosines
        error = terms.std(0) / np.sqrt(draws)
        deviation = (terms.mean(0) - np.asarray(exact)) / error
        assert np.abs(deviation).max() < 5, kind.__name__
        assert error.max() < 0.01, kind.__name__


LAWS = {
    Gaussian: lambda length: stats.norm(scale=1 / length),
    Matern12: lambda length: stats.t(1, scale=1 / length),
    Matern32: lambda length: stats.t(3, scale=1 / length),
    Matern52: lambda length: stats.t(5, scale=1 / length),
    Laplacian: lambda length: stats.cauchy(scale=1 / length),
    Cauchy: lambda length: stats.laplace(scale=1 / length),
}


def test_each_feature_has_its_law():
    lengths = np.array([0.5, 2.0, 1.0])
    kernels = [kind(lengths) for kind in LAWS]
    draw = jax.jit(lambda kernels, key: [kernel.frequencies(key, 3000, 3) for kernel in kernels])
    for kernel, omega in zip(kernels, draw(kernels, jax.random.key(3)), strict=True):
        laws = [LAWS[type(kernel)](length) for length in lengths]
        levels = [stats.kstest(column, law.cdf).pvalue for column, law in zip(np.asarray(omega).T, laws, strict=True)]
        assert min(levels) > 1e-4, kernel


def test_orthogonal_frequencies_are_orthogonal_in_groups_and_independent_in_length():
    omega = np.asarray(Gaussian().frequencies(jax.random.key(0), 4000, 4, "orthogonal")).reshape(1000, 4, 4)
    products = np.einsum("gik,gjk->gij", omega, omega)
    lengths = np.sqrt(np.einsum("gii->gi", products))
    cosines = products / (lengths[:, :, None] * lengths[:, None, :])
    np.testing.assert_allclose(cosines, np.broadcast_to(np.eye(4), cosines.shape), atol=1e-4)
    assert stats.kstest(lengths.ravel() ** 2, stats.chi2(4).cdf).pvalue > 1e-4
    assert np.abs(np.corrcoef(lengths.T)[~np.eye(4, dtype=bool)]).max() < 5 / np.sqrt(1000)


def test_fewer_orthogonal_frequencies_than_features():
    omega = np.asarray(Gaussian().frequencies(jax.random.key(0), 3, 50, "orthogonal"))
    products = omega @ omega.T
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-3)


def test_quasi_random_blocks_continue_one_another():
    @jax.jit
    def draw(kernels, key):
        blocks = ((8, 4), (8, 5), (16, 2))
        return [[kernel.frequencies(key, count, 2, "quasi", block) for count, block in blocks] for kernel in kernels]

    for first, second, both in draw([Matern32([0.5, 2.0]), Laplacian()], jax.random.key(1)):
        np.testing.assert_array_equal(np.concatenate([first, second]), both)


@pytest.mark.parametrize("kind", [Laplacian, Cauchy])
def test_products_have_no_orthogonal_frequencies(kind):
    with pytest.raises(IncompatiblePartsError, match=f"{kind.__name__} has no orthogonal .* use kind='random' or 'qu"):
        kind().frequencies(jax.random.key(0), 4, 2, "orthogonal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count must be a whole number of at least 1, found 0"),
        ({"dimension": 3}, "the data has 3 features and the kernel 2 lengthscales"),
        ({"kind": "sobol"}, "kind must be one of 'random', 'orthogonal', 'quasi', found 'sobol'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Gaussian([1.0, 2.0]).frequencies(jax.random.key(0), **{"count": 4, "dimension": 2, **arguments})

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from spectral_matrices import masses_of

from thalweg.spectral import degrees
from thalweg.spectral.chebyshev import series
from thalweg.spectral.degrees import FLOOR, LAWS, InfiniteVarianceWarning, optimal, theorem3, variance

LONG = np.append(2.0 ** -np.arange(60.0), np.full(40_000, 1e-300))


@pytest.mark.parametrize("name", [name for name in LAWS if name != "fixed"])
@pytest.mark.parametrize("mean", [5.0, 30.0, 120.0])
def test_mass_is_one_and_mean_is_n(name, mean):
    coefficients = LONG if name != "optimal" else 0.99 ** np.arange(2000.0)
    law = theorem3(coefficients, mean, 1.05) if name == "theorem3" else LAWS[name](coefficients, mean)
    masses = masses_of(law)
    assert np.all(masses >= 0)
    # The last mass holds whatever is left: it must be next to nothing on so long a table.
    assert masses[-1] < 1e-6
    assert np.sum(masses) == pytest.approx(1.0, abs=1e-12)
    assert np.arange(masses.size) @ masses == pytest.approx(mean, rel=1e-9)


def test_theorem3_has_the_corrected_masses():
    rho, mean = 1.3, 12.0
    law = theorem3(np.ones(400), mean, rho)
    K = max(0, int(np.ceil(mean - rho / (rho - 1))))
    i = np.arange(400)
    expected = np.where(i < K, 0.0, (mean - K) * (rho - 1) ** 2 * rho ** (K - i - 1.0))
    expected[K] = 1 - (mean - K) * (rho - 1) / rho
    assert masses_of(law)[:-1] == pytest.approx(expected[:-1], abs=1e-14)
    # The printed exponent, N − K − i − 1, has another total.
    printed = np.where(i > K, (mean - K) * (rho - 1) ** 2 * rho ** (mean - K - i - 1.0), expected)
    assert abs(printed.sum() - 1) > 1e-2


@pytest.mark.parametrize("kappa", [1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
def test_the_optimal_law_beats_theorem3_everywhere(kappa):
    b = series(jnp.log, 1.0, kappa)
    rho = (np.sqrt(kappa) + 1) / (np.sqrt(kappa) - 1)
    tried = 0
    for mean in (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 200.0):
        if mean < b.size - 1:
            tried += 1
            assert variance(b, optimal(b, mean)) <= variance(b, theorem3(b, mean, rho)) * (1 + 1e-9)
    assert tried >= 2


@pytest.mark.parametrize(
    ("kappa", "mean", "ratio"),
    [(1e2, 15, 1.14), (1e3, 15, 8.1), (1e3, 30, 1.4), (1e4, 30, 31), (1e4, 60, 2.5), (1e5, 60, 69), (1e5, 120, 98)],
)
def test_the_table_of_variance_ratios(kappa, mean, ratio):
    b = series(jnp.log, 1.0, kappa)
    rho = (np.sqrt(kappa) + 1) / (np.sqrt(kappa) - 1)
    found = variance(b, theorem3(b, mean, rho)) / variance(b, optimal(b, mean))
    assert found == pytest.approx(ratio, rel=0.06)
    if (kappa, mean) == (1e5, 120):
        assert found >= 90


@pytest.mark.parametrize(
    "b",
    [
        np.array([1.0, 0.9, 0.5, 0.3, 0.2, 0.1, 0.05]),
        np.array([1.0, 0.0, 0.8, 0.0, 0.3, 0.0, 0.1]),  # even
        np.array([0.0, 0.7, 0.0, 0.5, 0.0, 0.2, 0.0, 0.06]),  # odd
        np.array([1.0, 0.1, 0.6, 0.2, 0.4, 0.01, 0.3]),
    ],
)
@pytest.mark.parametrize("mean", [1.3, 2.5, 4.0])
def test_the_optimal_law_is_the_minimiser(b, mean):
    """Against brute-force convex optimisation over survivals 1 ≥ S_1 ≥ S_2 ≥ …, Σ S_j = N."""
    weights = b[1:] ** 2
    J = weights.size
    order = np.eye(J, k=0)[:-1] - np.eye(J, k=1)[:-1]
    result = scipy.optimize.minimize(
        lambda s: np.sum(weights / s),
        np.full(J, mean / J),
        jac=lambda s: -weights / s**2,
        bounds=[(1e-9, 1.0)] * J,
        constraints=[
            {"type": "eq", "fun": lambda s: s.sum() - mean, "jac": lambda s: np.ones(J)},
            {"type": "ineq", "fun": lambda s: order @ s, "jac": lambda s: order},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    ours = np.sum(weights / optimal(b, mean).survival[1:])
    assert ours == pytest.approx(result.fun, rel=1e-5)
    assert ours <= result.fun * (1 + 1e-7)


def test_beyond_the_last_coefficient_the_series_is_not_truncated():
    b = series(jnp.log, 1.0, 4.0)
    for mean in (b.size - 1, b.size + 50.0):
        law = optimal(b, mean)
        assert np.all(law.log_survival == 0)
        assert variance(b, law) == 0


def test_no_degree_is_beyond_the_reach_of_the_uniform_numbers():
    b = series(jnp.log, 1.0, 1e4)
    law = optimal(b, 10.0)
    assert law.survival[-1] >= 0.99 * FLOOR
    assert law.log_survival.size == b.size


def test_infinite_variance_is_said():
    b = series(jnp.log, 1.0, 1e2)
    for law in (degrees.poisson(b, 30.0), degrees.geometric(b, 1.0)):
        with pytest.warns(InfiniteVarianceWarning, match="infinite variance"):
            degrees.warn_if_infinite(b, law)
    degrees.warn_if_infinite(b, degrees.geometric(b, 30.0))  # a warning would be an error here
    e = series(jnp.exp, -1.0, 1.0)
    degrees.warn_if_infinite(e, degrees.poisson(e, 5.0))


def test_the_fixed_law_knows_that_it_is_biased():
    b = series(jnp.log, 1.0, 1e2)
    assert degrees.fixed(b, 5.0).biased
    assert not degrees.fixed(b, b.size + 1.0).biased
    assert variance(b, degrees.fixed(b, 5.0)) == np.inf


def test_the_joint_law_weighs_both_series():
    value, slope = series(jnp.log, 1.0, 1e3), series(jnp.log, 1.0, 1e3, derivative=True)
    law = optimal(value, 40.0, slope)
    assert law.mean == pytest.approx(40.0)
    padded = np.append(value, np.zeros(slope.size - value.size))
    assert variance(slope, law) < variance(slope, optimal(padded, 40.0))


@pytest.mark.parametrize("mean", [0.0, -1.0, np.nan])
def test_a_mean_that_is_not_positive_is_refused(mean):
    with pytest.raises(ValueError, match="degree"):
        optimal(np.ones(5), mean)

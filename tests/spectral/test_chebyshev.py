import jax.numpy as jnp
import numpy as np
import pytest
from spectral_matrices import FUNCTIONS

from thalweg.spectral.chebyshev import EPS, chebval, decay, evaluate, from_unit, series


@pytest.mark.parametrize("kappa", [2.0, 1e2, 1e4, 1e6])
def test_coefficients_of_the_logarithm_are_those_of_the_series(kappa):
    b = series(jnp.log, 1.0, kappa)
    rho = (np.sqrt(kappa) + 1) / (np.sqrt(kappa) - 1)
    j = np.arange(1, b.size)
    known = -2.0 * (-1.0 / rho) ** j / j
    # No aliasing, and no error above rounding, in any coefficient.
    assert np.max(np.abs(b[1:] - known)) < 32 * EPS * np.log(kappa)
    # As many as it takes and none past it: the last one is near rounding, what was left out is below.
    scale = np.max(np.abs(b))
    assert np.abs(b[-1]) < 1e3 * EPS * scale
    assert 2 * rho ** -float(b.size) / b.size < 64 * EPS * scale


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("derivative", [False, True])
def test_series_reproduces_the_function(name, derivative):
    f = FUNCTIONS[name]
    b = series(f, 0.05, 3.0, derivative=derivative)
    t = np.linspace(-1, 1, 301)
    exact = evaluate(f, from_unit(t, 0.05, 3.0), derivative=derivative)
    assert np.max(np.abs(chebval(t, b) - exact)) < 1e-12 * np.max(np.abs(exact))


def test_a_polynomial_has_no_more_coefficients_than_its_degree():
    b = series(lambda x: 3.0 * x**3 - x + 2.0, -2.0, 5.0)
    assert b.size == 4
    assert series(lambda x: jnp.full_like(x, 7.0), 0.0, 1.0) == pytest.approx([7.0])


def test_oscillation_between_the_points_is_not_missed():
    b = series(lambda x: jnp.cos(400.0 * x), -1.0, 1.0)
    t = np.linspace(-1, 1, 999)
    assert np.max(np.abs(chebval(t, b) - np.cos(400 * t))) < 1e-11


@pytest.mark.parametrize(
    ("f", "where"),
    [
        (lambda x: jnp.abs(x - 0.3), 0.3),
        (lambda x: 1.0 / (x - 0.7), 0.7),
        (lambda x: jnp.where(x > -0.25, 1.0, 0.0), -0.25),
    ],
)
def test_a_singularity_inside_is_located(f, where):
    with pytest.raises(ValueError, match="singular") as caught:
        series(f, -1.0, 1.0, max_degree=2**13)
    found = float(str(caught.value).split("x = ")[1].split(". ")[0])
    assert found == pytest.approx(where, abs=1e-3)


def test_a_function_undefined_on_part_of_the_interval_says_where_its_domain_ends():
    with pytest.raises(ValueError, match=r"not finite .* near x = -?\d") as caught:
        series(lambda x: jnp.log(x - 0.2), -1.0, 1.0)
    assert float(str(caught.value).split("x = ")[1].split(". ")[0]) == pytest.approx(0.2, abs=1e-9)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_bad_intervals_are_refused(ends):
    with pytest.raises(ValueError, match="interval must be"):
        series(jnp.exp, *ends)


@pytest.mark.parametrize(("f", "kappa"), [(jnp.log, 1e2), (jnp.sqrt, 1e3), (lambda x: 1 / x, 1e4)])
def test_decay_finds_rho(f, kappa):
    rho, entire = decay(series(f, 1.0, kappa))
    assert not entire
    assert np.log(rho) == pytest.approx(np.log((np.sqrt(kappa) + 1) / (np.sqrt(kappa) - 1)), rel=0.03)


def test_evaluation_is_in_float64_whatever_the_setting():
    import jax

    with jax.enable_x64(False):
        assert evaluate(jnp.log, [3.0])[0] == np.log(3.0)
        assert series(jnp.log, 1.0, 9.0).dtype == np.float64


@pytest.mark.parametrize(("name", "lower", "upper", "rho"), [("log", 0.05, 0.95, 1.5), ("exp", -1.0, 1.0, 3.0)])
def test_coefficients_and_truncation_error_obey_the_bound_2(name, lower, upper, rho):
    """|b_j| ≤ 2U/ρʲ and sup |f − p_n| ≤ 4U/((ρ − 1)ρⁿ), U the largest |f| on the ellipse of ρ (Han et al. 2018)."""
    f = {"log": np.log, "exp": np.exp}[name]
    turn = rho * np.exp(1j * np.linspace(0, 2 * np.pi, 4001))
    ellipse = (turn + 1 / turn) / 2
    largest = np.max(np.abs(f((upper - lower) / 2 * ellipse + (upper + lower) / 2)))
    b = series({"log": jnp.log, "exp": jnp.exp}[name], lower, upper)
    degrees = np.arange(b.size)
    assert np.all(np.abs(b) <= 2 * largest / rho**degrees)
    x = np.cos(np.linspace(0, np.pi, 2001))
    terms = b[:, None] * np.cos(degrees[:, None] * np.arccos(x))
    errors = np.max(np.abs(np.cumsum(terms, axis=0) - f((upper - lower) / 2 * x + (upper + lower) / 2)), axis=1)
    assert np.all(errors <= 4 * largest / ((rho - 1) * rho**degrees) + 1e-13)
    # A larger ρ than that of the singularity would be too much to ask of log.
    if name == "log":
        assert np.any(np.abs(b) > 2 * largest / 2.0**degrees)

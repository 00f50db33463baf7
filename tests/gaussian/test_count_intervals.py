"""Intervals of counts: their probability, whatever is known of the rate, and rates that no number holds."""

import numpy as np
import pytest
import scipy.stats

from thalweg import NegativeBinomialGLM, PoissonGLM
from thalweg.gaussian.linear.counts import count_intervals

LEVELS = [0.5, 0.8, 0.9, 0.95, 0.99]


def interval(mean, deviation, dispersion, level):
    given = (np.array([[value]]) for value in (mean, deviation**2))
    return count_intervals(np.ones(1), *given, np.array([dispersion]), level)[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mean", [8.0, 100.0, 400.0])
def test_ends_are_those_of_the_rate_where_it_is_all_that_varies(mean, level):
    """With 32 nodes 90 % intervals held 83 %; rates beyond e³⁰⁰ were that."""
    found = scipy.stats.norm.cdf(np.log(interval(mean, 3.0, 0.0, level)), mean, 3.0)
    assert found[1] - found[0] == pytest.approx(level, abs=0.015)
    assert found[0] == pytest.approx(1 - found[1], abs=0.015)


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 0.3), (3.0, 0.5), (5.0, 0.2), (6.0, 0.05)])
@pytest.mark.parametrize("dispersion", [1e-9, 0.5])
def test_ends_are_those_of_many_draws(mean, deviation, dispersion):
    rng = np.random.default_rng(0)
    rates = np.exp(rng.normal(mean, deviation, size=100_000))
    draws = rng.poisson(rates * rng.gamma(1 / dispersion, dispersion, size=rates.shape))
    for level in LEVELS:
        low, high = interval(mean, deviation, dispersion, level)
        assert np.mean(draws < low) <= (1 - level) / 2 + 0.01 <= np.mean(draws <= low) + 0.02
        assert np.mean(draws > high) <= (1 - level) / 2 + 0.01 <= np.mean(draws >= high) + 0.02


@pytest.mark.parametrize("kind", [PoissonGLM, NegativeBinomialGLM])
def test_rows_a_thousand_deviations_away(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1))
    model = kind().fit(X, rng.poisson(np.exp(0.5 + 0.3 * X[:, 0])))
    ends = np.log(model.predict_interval([[1000.0]])[0])
    mean, deviation = model.intercept_ + 1000 * model.coef_[0], 1000 * model.coef_sd_[0]
    np.testing.assert_allclose(ends, mean + np.array([-1.96, 1.96]) * deviation, atol=0.1 * deviation)
    with pytest.warns(
        RuntimeWarning,
        match="1 rows far from all that was learned from have intervals beyond 1e308; the first of them is row 1",
    ):
        assert np.array_equal(model.predict_interval([[0.0], [1e6]])[1], [np.inf, np.inf])


def test_a_rare_count_beside_a_frequent_one_has_an_interval():
    """The search for a large end goes on while that of a small one, 0, is found."""
    low, high = count_intervals(np.ones(1), np.log([[1e-3, 50.0]]), np.full((1, 2), 0.01), np.zeros(1), 0.95).T
    assert low[0] == high[0] == 0
    assert low[1] < 50 < high[1]

"""The fit of linear models below the estimators: observations in short, coordinates, and interruptions."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import Status, minimize
from thalweg.gaussian import ExpectedLikelihood, GaussianNoise, Implicit, KLToProcess, linear
from thalweg.gaussian.linear import search as searching

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
LABELS = (X[:, 0] + rng.logistic(size=60) > 0).astype(float)
ROWS = linear.Observations.of(X, LABELS, np.ones(60), intercept=True)
SEARCH = linear.Search(1e-6, 1000)


def test_compressed_observations_have_the_same_products():
    weights = rng.uniform(0, 2, size=60)
    rows = linear.Observations.of(X, rng.normal(size=60), weights, intercept=True)
    short = rows.compressed()
    assert len(short.targets) == 5
    both = [np.column_stack([part.columns, part.targets]) for part in (rows, short)]
    np.testing.assert_allclose(
        *((part.T * wide.weights) @ part for part, wide in zip(both, (rows, short), strict=True)), atol=1e-12
    )
    assert short.weights.sum() == pytest.approx(weights.sum())


def test_a_frame_makes_the_prior_standard():
    """With weights u of N(0, I) the linear predictor is that of coefficients of N(0, s²) on centred features."""
    frame = linear.Prior(2.0, intercept=10.0).frame(linear.Labels(), ROWS, 2.0)
    assert frame.origin(ROWS.columns) == pytest.approx(np.log((LABELS.sum() + 0.5) / (60.5 - LABELS.sum())))
    np.testing.assert_allclose(frame.design(ROWS.columns)[:, 0], 10.0)
    np.testing.assert_allclose(frame.design(ROWS.columns)[:, 1:], 2 * (X - X.mean(axis=0)))
    ones = linear.Observations(np.ones((3, 2)), np.ones(3), np.ones(3))
    assert linear.Frame(None, np.ones(2)).spreads(ones).tolist() == [1, 1]
    constant = linear.Observations.of(np.full((3, 2), 0.1), np.ones(3), np.ones(3), intercept=True)
    assert linear.Prior().frame(linear.Measurements(), constant, 1.0).spreads(constant).tolist() == [0, 0]


def interrupted_at(call, monkeypatch):
    """Let the given search of a fit be interrupted from the keyboard after a step."""
    whole, calls = searching.minimize, []

    def impatient(*arguments, **options):
        calls.append(None)
        result = whole(*arguments, **options)
        return replace(result, status=Status.INTERRUPTED) if len(calls) == call else result

    monkeypatch.setattr(searching, "minimize", impatient)


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("scale", [2.0, "learn"], ids=["given", "learned"])
def test_an_interrupted_fit_keeps_what_was_found(monkeypatch, call, scale):
    interrupted_at(call, monkeypatch)
    found = linear.fit(linear.Labels(), ROWS, linear.Prior(scale), SEARCH)
    assert (found.status is Status.INTERRUPTED) == (scale == "learn" or call == 1)
    assert np.isfinite(found.elbo)
    assert np.all(np.isfinite(found.predict(X)))


def test_before_anything_was_found_an_interruption_is_passed_on(monkeypatch):
    whole = searching.minimize
    spent = lambda *arguments, **options: replace(whole(*arguments, **options), status=Status.INTERRUPTED, steps=0)
    monkeypatch.setattr(searching, "minimize", spent)
    with pytest.raises(KeyboardInterrupt):
        linear.fit(linear.Labels(), ROWS, linear.Prior(), SEARCH)


def test_a_solution_is_plain_data():
    found = linear.fit(linear.Measurements(), ROWS, linear.Prior("learn"), SEARCH)
    assert all(type(part.mean) is np.ndarray for _, part in found.weights.parts())
    assert all(type(part) is np.ndarray for part in (*found.weights.members[0].spread, *found.stream))
    assert type(found.likelihood.variance) is np.ndarray
    assert type(found.prior_scale) is np.ndarray


def test_an_optimum_that_rounding_makes_look_lower_than_all_around_it_is_no_divergence():
    """Seen with JAX 0.11: more features than rows, a wide intercept, and "a bound beyond the range of numbers"."""
    columns, y = rng.normal(size=(12, 30)), jnp.asarray(rng.normal(size=12))
    K = jnp.asarray(columns @ columns.T + 1e6)
    best = Implicit.from_sites(K, jnp.linalg.solve(K + jnp.eye(12), y), jnp.ones(12))
    start = best._replace(log_determinant=best.log_determinant - 1e-8)
    oracle = ExpectedLikelihood(GaussianNoise(1.0), y)
    result = minimize(oracle, start, term=KLToProcess(K), **searching._method(SEARCH))
    assert result.status.success
    np.testing.assert_allclose(result.x.mean, best.mean, rtol=1e-6)

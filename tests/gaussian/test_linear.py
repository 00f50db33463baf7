"""The fit of linear models below the estimators: compressed observations, coordinates, Ctrl-C, host and device."""

from itertools import count

import jax
import numpy as np
import pytest

from thalweg.descent import Status
from thalweg.gaussian import BernoulliLogit, Full, KLToNormal, NegativeBinomial, linear
from thalweg.gaussian.ascent import maximise_bound
from thalweg.gaussian.oracle import WeightLikelihood
from thalweg.gaussian.softmax import ExpectedSoftmax

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
LABELS = (X[:, 0] + rng.logistic(size=60) > 0).astype(float)
ROWS = linear.LinearObservations.of(X, LABELS, np.ones(60), intercept=True)
SETTINGS = linear.AscentSettings(1e-6, 1000)


def test_compressed_observations_have_the_same_products():
    weights = rng.uniform(0, 2, size=60)
    rows = linear.LinearObservations.of(X, rng.normal(size=60), weights, intercept=True)
    short = rows.compressed()
    assert len(short.targets) == 5
    both = [np.column_stack([part.columns, part.targets]) for part in (rows, short)]
    np.testing.assert_allclose(
        *((part.T * wide.weights) @ part for part, wide in zip(both, (rows, short), strict=True)), atol=1e-12
    )
    assert short.weights.sum() == pytest.approx(weights.sum())


def test_a_frame_makes_the_prior_standard():
    """With weights u of N(0, I) the linear predictor is that of coefficients of N(0, s²) on centred features."""
    frame = linear.LinearModel(linear.BinaryTargets(), SETTINGS, 2.0, 10.0).frame(ROWS, 2.0)
    assert frame.origin(ROWS.columns) == pytest.approx(np.log((LABELS.sum() + 0.5) / (60.5 - LABELS.sum())))
    np.testing.assert_allclose(frame.design(ROWS.columns)[:, 0], 10.0)
    np.testing.assert_allclose(frame.design(ROWS.columns)[:, 1:], 2 * (X - X.mean(axis=0)))
    ones = linear.LinearObservations(np.ones((3, 2)), np.ones(3), np.ones(3))
    assert linear.PriorFrame(None, np.ones(2)).spreads(ones).tolist() == [1, 1]
    constant = linear.LinearObservations.of(np.full((3, 2), 0.1), np.ones(3), np.ones(3), intercept=True)
    assert linear.LinearModel(linear.RealTargets(), SETTINGS).frame(constant, 1.0).spreads(constant).tolist() == [0, 0]


def interrupting(kind, call):
    """A likelihood of a kind, in the middle of whose given evaluation Ctrl-C is pressed."""
    calls = count(1)

    class Interrupting(kind):
        def expected(self, y, m, v):
            if next(calls) == call:
                raise KeyboardInterrupt
            return super().expected(y, m, v)

    return Interrupting


def labels_interrupted_at(call):
    kind = interrupting(BernoulliLogit, call)

    class Labels(linear.BinaryTargets):
        def posterior(self, problem, nearby=None):
            return problem.solve(kind(), nearby)

    return Labels()


@pytest.mark.parametrize("call", [5, 20])
@pytest.mark.parametrize("scale", [2.0, "learn", "auto"])
def test_an_interrupted_fit_keeps_its_last_posterior(call, scale):
    whole = linear.LinearModel(linear.BinaryTargets(), SETTINGS, scale).fit(ROWS)
    model = linear.LinearModel(labels_interrupted_at(call), SETTINGS, scale)
    if (scale, call) == (2.0, 20):  # it had ended before
        assert model.fit(ROWS).status.success
        return
    with pytest.warns(UserWarning, match="interrupted .*: the result is what was reached so far"):
        fit = model.fit(ROWS)
    assert fit.status is Status.INTERRUPTED
    assert fit.steps <= whole.steps
    assert np.isfinite(fit.elbo)
    assert np.corrcoef(fit.predict(X), whole.predict(X))[0, 1] > 0.9


def test_before_the_first_step_an_interruption_is_raised():
    with pytest.raises(KeyboardInterrupt):
        linear.LinearModel(labels_interrupted_at(2), SETTINGS, 1.0).fit(ROWS)


def test_an_interrupted_search_for_a_dispersion_keeps_the_last_one():
    targets = rng.poisson(np.exp(0.5 * X[:, 0]) * rng.gamma(2.0, 0.5, size=60)).astype(float)
    rows = ROWS._replace(targets=targets)
    kind = interrupting(NegativeBinomial, 40)

    class Counts(linear.CountTargets):
        def likelihood(self, dispersion):
            with jax.enable_x64(True):
                return kind(dispersion, whole=False)

    with pytest.warns(UserWarning, match="interrupted"):
        fit = linear.LinearModel(Counts(), SETTINGS, 1.0).fit(rows)
    assert fit.status is Status.INTERRUPTED
    whole = linear.LinearModel(linear.CountTargets(), SETTINGS, 1.0).fit(rows)
    assert float(fit.likelihood.dispersion) == pytest.approx(float(whole.likelihood.dispersion), rel=0.5)


def test_a_fit_is_plain_data():
    fit = linear.LinearModel(linear.RealTargets(), SETTINGS, "learn").fit(ROWS)
    assert all(type(part.mean) is np.ndarray for _, part in fit.weights.parts())
    assert all(type(part) is np.ndarray for part in (fit.weights.members[0].covariance, *fit.stream))
    assert type(fit.likelihood.variance) is np.ndarray
    assert type(fit.prior_scale) is np.ndarray


def standard_normal(size):
    return Full(np.zeros(size), np.eye(size), np.eye(size))


LIKELIHOODS = {
    "one latent value": (WeightLikelihood(BernoulliLogit(), LABELS, np.ones(60), np.zeros(60), X), 3),
    "several classes": (ExpectedSoftmax.of(np.eye(3)[np.arange(60) % 3], X, np.zeros(3), 64), 6),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_steps_on_a_device_are_those_on_the_host(name):
    likelihood, size = LIKELIHOODS[name]
    prior = standard_normal(size)
    host = maximise_bound(likelihood, KLToNormal(prior), prior, tol=1e-7, max_iter=100)
    assert host.status is Status.CONVERGED
    parts = jax.device_put((likelihood, KLToNormal(prior), prior))
    device = maximise_bound(*parts, tol=1e-7, max_iter=100)
    assert isinstance(device.x.mean, jax.Array)
    assert device.loss == pytest.approx(host.loss, abs=1e-9)
    np.testing.assert_allclose(device.x.mean, host.x.mean, atol=1e-7)
    np.testing.assert_allclose(device.x.covariance, host.x.covariance, atol=1e-7)


def test_steps_begin_where_the_bound_is_finite():
    likelihood, size = LIKELIHOODS["one latent value"]
    prior = standard_normal(size)
    far = prior._replace(mean=np.full(size, np.inf))
    result = maximise_bound(likelihood, KLToNormal(prior), far, prior, tol=1e-6, max_iter=100)
    assert result.status is Status.CONVERGED
    assert result.history["value"][-1] == result.loss
    assert np.all(np.diff(result.history["step"]) == 1)


def test_a_tolerance_below_rounding_ends_in_stagnation():
    likelihood, size = LIKELIHOODS["one latent value"]
    prior = standard_normal(size)
    result = maximise_bound(likelihood, KLToNormal(prior), prior, tol=1e-30, max_iter=10_000)
    assert result.status is Status.STAGNATED
    assert result.steps < 200

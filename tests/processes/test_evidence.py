"""Searches for the parameters that make rows most probable, and draws of plausible ones, against brute force."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from thalweg.descent import Status
from thalweg.kernels import Gaussian, Laplacian, Matern32
from thalweg.processes.evidence import LogPosterior, maximise, sample_parameters
from thalweg.processes.exact import EvidenceEvaluation, ExactEvidence, Parameters
from thalweg.processes.observations import ProcessMean, RegressionRows
from thalweg.threads import enough_threads
from thalweg.trees import as_host_arrays, flattened

RNG = np.random.default_rng(0)
INPUTS = np.concatenate([RNG.normal(size=(64, 2)), np.zeros((6, 2))])
INPUTS[64:] = INPUTS[:6]  # duplicate rows
TARGETS = np.sin(2 * INPUTS[:, :1]) + 0.1 * RNG.normal(size=(70, 1))
OPTIONS = {"max_iter": 100, "tolerance": 1e-3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True), enough_threads(64):
        yield


def made(kernel, noise=0.1):
    return as_host_arrays(Parameters(kernel, np.asarray(noise)))


@pytest.fixture(scope="module")
def evidence():
    mean = ProcessMean.of("constant", INPUTS)
    weights = 1.0 + np.arange(70) % 2
    rows = RegressionRows.of(INPUTS, TARGETS, np.full(70, 0.02), weights, mean).merged()
    assert len(rows.inputs) == 64
    return ExactEvidence(rows)


def posterior_of(evidence, origin, least_noise=1e-8, **options):
    return LogPosterior(evidence, origin, least_noise=least_noise, **options)


def one_feature(inputs, targets):
    """Rows of one feature with a constant mean."""
    count = len(inputs)
    ones, zeros = np.ones(count), np.zeros(count)
    return ExactEvidence(RegressionRows(inputs, targets, ones[:, None], zeros, ones, zeros, ones, zeros))


@pytest.mark.parametrize("kernel", [Matern32([1.4, 1.4]), Gaussian([1.0, 2.0]) + Matern32([2.0, 0.5])], ids=str)
def test_newton_steps_end_where_gradients_alone_do(evidence, kernel):
    start = made(kernel)
    posterior = posterior_of(evidence, start)
    newton = maximise(posterior, start, max_iter=100, tolerance=1e-4)
    blind = lambda point: evidence.evaluate(point)._replace(information=None)
    unknown = SimpleNamespace(inputs=evidence.inputs, evaluate=blind)
    gradients = maximise(posterior_of(unknown, start), start, max_iter=300, tolerance=1e-6)
    assert newton.status is gradients.status is Status.CONVERGED
    values = [posterior.evaluate(posterior.point(one.parameters))[0] for one in (newton, gradients)]
    assert values[0] == pytest.approx(values[1], abs=0.01)


def test_a_start_that_is_far_off_is_left_in_few_steps(evidence):
    near, far = made(Gaussian([1.4, 1.4])), made(Gaussian([30.0, 0.02], 1e3), noise=5.0)
    best, found = (maximise(posterior_of(evidence, near), start, **OPTIONS) for start in (near, far))
    assert found.loss < best.loss + 0.1
    assert found.evaluations < 40


def test_a_kernel_of_which_no_information_is_known_is_searched_by_gradients(evidence):
    start = made(Laplacian(1.0))
    assert evidence.evaluate(start).information is None
    found = maximise(posterior_of(evidence, start), start, **OPTIONS | {"max_iter": 20})
    assert found.loss < np.sum(evidence.losses(start)) - 1


def test_what_is_fixed_or_does_not_vary_stays_and_what_is_tied_keeps_its_proportions():
    inputs = np.column_stack([INPUTS, np.full(70, 3.0)])
    rows = RegressionRows.of(inputs, TARGETS, np.zeros(70), np.ones(70), ProcessMean.of("constant", inputs)).merged()
    start = made(Gaussian([1.4, 1.4, 7.0]))
    found = maximise(LogPosterior(ExactEvidence(rows), start, fixed=1), start, **OPTIONS).parameters
    assert found.noise == start.noise
    assert found.kernel.lengthscale[2] == 7.0
    assert found.kernel.lengthscale[0] != 1.4
    posterior = posterior_of(ExactEvidence(rows), start, tied=True)
    tied = maximise(posterior, start, **OPTIONS).parameters.kernel.lengthscale
    np.testing.assert_allclose(tied / tied[0], [1.0, 1.0, 5.0])
    assert tied[0] != 1.4


def test_the_least_noise_is_a_bound(evidence):
    start = made(Gaussian([1.4, 1.4]))
    found = maximise(posterior_of(evidence, start, least_noise=0.09), start, **OPTIONS)
    assert found.parameters.noise == pytest.approx(0.09)


def test_each_optimum_on_the_way_is_kept(evidence):
    start, kept = made(Gaussian([1.4, 1.4])), []
    found = maximise(posterior_of(evidence, start), start, **OPTIONS, keep=kept.append)
    losses = [one.loss for one in kept]
    assert len(kept) > 2
    assert losses[-1] == found.loss
    assert losses[-1] < losses[0]


class NoSteps:
    """Evidence that is finite at one point alone."""

    inputs = INPUTS

    def evaluate(self, parameters):
        there = float(parameters.noise) == 0.1
        count = flattened(parameters).size
        return EvidenceEvaluation(np.array([1.0 if there else np.nan]), np.ones(count), np.eye(count))


def test_a_search_among_what_cannot_be_evaluated_stays_where_it_is():
    start = made(Gaussian([1.4, 1.4]))
    found = maximise(posterior_of(NoSteps(), start), start, **OPTIONS)
    np.testing.assert_allclose(flattened(found.parameters), flattened(start))


class Bent:
    """A density without a Gaussian shape whose moments are known: a ~ N(0, 1), b | a ~ N(a²/2, 1/4)."""

    deviation = 3.0
    point = staticmethod(lambda parameters: parameters)
    parameters = staticmethod(lambda point: point.copy())

    def integrated(self, x):
        return x[0] ** 2 / 2 + 2 * (x[1] - x[0] ** 2 / 2) ** 2

    def evaluate(self, x):
        off = x[1] - x[0] ** 2 / 2
        return self.integrated(x), np.array([x[0] - 4 * off * x[0], 4 * off]), None, None


def within_errors(draws, truth):
    """Within five standard errors, from means over a hundred batches of the chain."""
    batches = draws.reshape(100, -1, *draws.shape[1:]).mean(axis=1)
    return np.all(np.abs(batches.mean(axis=0) - truth) < 5 * batches.std(axis=0) / np.sqrt(100))


def test_draws_have_the_moments_of_their_density():
    draws = sample_parameters(Bent(), np.zeros(2), 6000, np.random.default_rng(0))
    a, b = np.array([one for _, one in draws]).T
    moments = np.stack([a, a**2, b, b**2, a * b, a**2 * b], axis=1)
    # E a⁴ = 3: E b = 1/2, E b² = 3/4 + 1/4, E ab = 0, E a²b = 3/2.
    assert within_errors(moments, np.array([0, 1, 0.5, 1.0, 0, 1.5]))


@pytest.mark.slow
def test_draws_of_parameters_are_those_of_a_quadrature():
    evidence = one_feature(INPUTS[:24, :1], TARGETS[:24])
    origin = made(Gaussian(1.0, 1.0), 0.05)
    posterior = LogPosterior(evidence, origin, fixed=1)
    grid = np.stack(np.meshgrid(np.linspace(-3, 2, 41), np.linspace(-4, 6, 41), indexing="ij"), axis=-1).reshape(-1, 2)
    heights = -np.array([posterior.integrated(point) for point in grid])
    share = np.exp(heights - heights.max())
    share /= share.sum()
    best = maximise(posterior, origin, **OPTIONS).parameters
    draws = sample_parameters(posterior, best, 2000, np.random.default_rng(0))
    points = np.array([posterior.point(one) for _, one in draws])
    assert within_errors(points, share @ grid)
    assert within_errors(points**2, share @ grid**2)


def test_the_coefficients_of_the_mean_are_integrated_over():
    """Of ten rows of noise about an unknown mean, 1/noise is a gamma law of nine degrees of freedom, not of ten."""
    targets = np.random.default_rng(0).normal(size=(10, 1))
    start = made(Gaussian(1e-3, 1e-9), 1.0)
    posterior = LogPosterior(one_feature(np.arange(10.0)[:, None], targets), start, deviation=100.0)
    points = np.tile(posterior.point(start), (100, 1))
    points[:, -1] = np.linspace(-3, 3, 100)
    heights = -np.array([posterior.integrated(one) for one in points])
    squares = np.sum((targets - targets.mean()) ** 2)
    expected = -9 / 2 * points[:, -1] - squares / 2 * np.exp(-points[:, -1])
    np.testing.assert_allclose(heights - heights[0], expected - expected[0], atol=1e-2)

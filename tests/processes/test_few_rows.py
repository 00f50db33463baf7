"""GP regression on few rows: likelihoods on the host, and the uncertainty of parameters, against brute force."""

import jax
import numpy as np
import pytest

from thalweg.kernels import (
    Bias,
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
)
from thalweg.processes import RegressorSettings, exact, fit_regressor, host
from thalweg.processes.blend import Blend
from thalweg.processes.evidence import Landscape, maximise, plausible
from thalweg.processes.exact import Observations, Parameters
from thalweg.processes.means import Mean
from thalweg.processes.posterior import ExactPosterior, MixedPosterior, left_out, widening

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(24, 2))
TARGETS = np.stack([np.sin(2 * INPUTS[:, 0]), INPUTS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(24, 2))
NEW = RNG.normal(size=(5, 2))
KERNELS = [
    *(family(lengthscale, 1.5) for family in (Gaussian, Matern12, Matern32, Matern52) for lengthscale in ([1, 2.0], 1)),
    Laplacian(1.3),
    Cauchy([1.0, 2.0]),
    Linear(0.5) + Bias(2.0) + White(0.3),
    Periodic(2.0) * Gaussian(3.0),
    Gaussian([1.0, 2.0], 1.5) + Matern12([2.0, 1.0], 0.3),
    Matern32([1.0, 2.0]) + Matern52(1.3, 0.4) + Matern12(0.7),
]
FAMILIES = [*KERNELS[:8], KERNELS[-2], Matern12(2.0) + Gaussian([1.0, 2.0])]
"""Those that one program serves."""


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def made(kernel):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), kernel)


def rows(mean="linear", targets=TARGETS):
    basis, weights = Mean.of(mean, INPUTS).basis(INPUTS), 1.0 + np.arange(24) % 3
    return host.HostRows(
        INPUTS, targets, basis, np.linspace(0, 0.1, 24), weights, np.zeros(24), weights, np.log(weights)
    )


def test_slopes_of_many_rows_are_estimates_from_draws(monkeypatch):
    data, parameters = rows("constant"), Parameters(made(KERNELS[0]), np.asarray(0.2))
    loss, slope = data.loss_and_slope(parameters)
    monkeypatch.setattr(host, "INVERTED", 0)
    monkeypatch.setattr(host, "DRAWN", 100_000)
    same, found = data.loss_and_slope(parameters)
    assert same == loss
    for mine, theirs in zip(*map(jax.tree.leaves, (found, slope)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=0.2)


def definition(parameters, data):
    """−log p(y) with the coefficients of the mean at their best: every row as often as it counts."""
    again = np.repeat(np.arange(len(data.inputs)), data.weights.astype(int))
    covariance = np.asarray(parameters.kernel(data.inputs))[again][:, again]
    covariance = covariance + np.diag(float(parameters.noise) + data.known[again])
    basis, targets = data.basis[again], data.targets[again]
    inverse = np.linalg.inv(covariance)
    if basis.shape[1]:
        targets = targets - basis @ np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse @ targets)
    constant = np.linalg.slogdet(covariance)[1] + len(again) * np.log(2 * np.pi)
    return (np.trace(targets.T @ inverse @ targets) + targets.shape[1] * constant) / 2


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_loss_and_slope_are_those_of_the_definition_and_its_differences(kernel):
    data, parameters = rows(), Parameters(made(kernel), np.asarray(0.2))
    loss, slope = data.loss_and_slope(parameters)
    assert loss == pytest.approx(definition(parameters, data), rel=1e-10)
    assert loss == pytest.approx(float(data.solution(parameters).loss), rel=1e-12)
    leaves, structure = jax.tree.flatten(parameters)
    for place, (leaf, found) in enumerate(zip(leaves, jax.tree.leaves(slope), strict=True)):
        for index in np.ndindex(np.shape(leaf)):
            sides = []
            for step in (1e-5, -1e-5):
                changed = [np.array(other) for other in leaves]
                changed[place][index] *= np.exp(step)
                sides.append(definition(jax.tree.unflatten(structure, changed), data))
            assert found[index] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-5)


def test_matrices_of_many_rows_are_made_twice_and_say_the_same(monkeypatch):
    data, parameters = rows("constant"), Parameters(made(KERNELS[-1]), np.asarray(0.2))
    kept = data.loss_and_slope(parameters)
    monkeypatch.setattr(host, "_KEPT", 0)
    for one, other in zip(*map(jax.tree.leaves, (kept, data.loss_and_slope(parameters))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("kernel", FAMILIES, ids=str)
def test_one_program_serves_all_families_and_says_what_the_host_says(kernel):
    data, parameters = rows("constant"), Parameters(made(kernel), np.asarray(0.2))
    theirs = Observations.padded(*data).loss_and_slope(parameters)
    assert jax.tree.structure(theirs[1]) == jax.tree.structure(parameters)
    for one, other in zip(*map(jax.tree.leaves, (data.loss_and_slope(parameters), theirs)), strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    first, second = Blend.of(made(FAMILIES[0]), 2), Blend.of(made(kernel), 2)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert jax.tree.map(np.shape, first) == jax.tree.map(np.shape, second)


@pytest.mark.parametrize("kernel", [KERNELS[8], KERNELS[10], KERNELS[-1]], ids=str)
def test_other_kernels_keep_programs_of_their_own(kernel):
    assert Blend.of(kernel, 2) is None


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_the_host_and_the_device_say_the_same(mean):
    data, parameters = rows(mean), Parameters(made(Matern52([1.0, 2.0], 1.5)), np.asarray(0.2))
    found = [data.solution(parameters), Observations.padded(*data).solution(parameters)]
    exact.prepare_predictions(parameters.kernel, data)
    programs = len(exact.compiled_predictions._made)
    mine, other = (ExactPosterior.of(parameters, Mean.of(mean, INPUTS), INPUTS, one) for one in found)
    for full in (False, True):
        for one, two in zip(mine._on_host(NEW, full), other._on_device(NEW, full), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    assert len(exact.compiled_predictions._made) == programs  # the one that was prepared


def test_rows_left_out_are_predicted_as_by_a_fit_without_them():
    targets = TARGETS[:, :1]
    settings = RegressorSettings(learn=False, mean="linear")
    kernel, noise = Matern32([1.0, 2.0], 1.5), 0.2
    data = rows("linear", targets)._replace(weights=np.ones(24), known=np.zeros(24))
    gaps, variances = left_out(data.solution(Parameters(made(kernel), np.asarray(noise))))
    for row in (0, 7, 23):
        others = np.arange(24) != row
        found = fit_regressor(INPUTS[others], targets[others], settings, kernel, noise)
        mean, variance = found.posterior.predict(INPUTS[row : row + 1])
        assert gaps[row, 0] == pytest.approx(targets[row, 0] - mean[0, 0], rel=1e-8)
        assert variances[row] == pytest.approx(variance[0] + noise, rel=1e-8)


def test_a_row_that_alone_determines_the_mean_is_not_predicted_by_others():
    inputs = np.array([[0.0], [0.0], [5.0]])
    basis = Mean("linear", np.zeros(1), np.ones(1), np.array([0])).basis(inputs)
    data = host.HostRows(inputs, inputs, basis, np.zeros(3), np.ones(3), np.zeros(3), np.ones(3), np.zeros(3))
    found = data.solution(Parameters(made(Gaussian(1.0)), np.asarray(0.1)))
    assert np.isinf(left_out(found)[1][2])


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_deviations_are_widened_by_as_much_as_they_were_too_small_and_never_narrowed(factor):
    gaps = factor * np.random.default_rng(1).normal(size=(1, 20000, 1))
    # Of a quantile at 95 %: √(0.05 · 0.95 / 20,000) / (2 φ(1.96)) = 0.013, against 1.96.
    assert widening(gaps, np.ones((1, 20000))) == pytest.approx(max(1.0, factor), rel=5 * 0.013 / 1.96)


def test_gaps_that_are_large_against_their_variances_leave_a_finite_width():
    gaps = 1e16 + np.array([0.0, 2.0])[:, None, None] * np.ones((1, 3, 1))
    with np.errstate(divide="raise", invalid="raise"):
        assert np.isfinite(widening(gaps, np.ones((2, 3))))


def test_a_plane_has_slopes_that_the_rows_tell_apart():
    doubled = np.column_stack([INPUTS, INPUTS[:, 0] * 3 + 1, np.full(24, 7.0)])
    assert np.linalg.matrix_rank(Mean.of("linear", doubled).basis(doubled)) == 3
    assert Mean.of("linear", doubled).basis(doubled).shape[1] == 3
    assert Mean.of("linear", doubled[:2]).basis(doubled[:2]).shape[1] == 1


class _Bent:
    """A density without a Gaussian shape whose moments are known: a ~ N(0, 1), b | a ~ N(a²/2, 1/4)."""

    spread = 3.0
    logs = staticmethod(lambda parameters: parameters)
    parameters = staticmethod(lambda logs: logs.copy())

    def integrated(self, x):
        return x[0] ** 2 / 2 + 2 * (x[1] - x[0] ** 2 / 2) ** 2

    def value_and_slope(self, x):
        off = x[1] - x[0] ** 2 / 2
        return self.integrated(x), np.array([x[0] - 4 * off * x[0], 4 * off])


def within_errors(draws, truth):
    """Within five standard errors, from means over a hundred batches of the chain."""
    batches = draws.reshape(100, -1, *draws.shape[1:]).mean(axis=1)
    return np.all(np.abs(batches.mean(axis=0) - truth) < 5 * batches.std(axis=0) / np.sqrt(100))


def test_plausible_parameters_have_the_moments_of_their_density():
    a, b = np.array([one for _, one in plausible(_Bent(), np.zeros(2), 20000, np.random.default_rng(0))]).T
    moments = np.stack([a, a**2, b, b**2, a * b, a**2 * b], axis=1)
    # E a⁴ = 3: E b = 1/2, E b² = 3/4 + 1/4, E ab = 0, E a²b = 3/2.
    assert within_errors(moments, np.array([0, 1, 0.5, 1.0, 0, 1.5]))


@pytest.mark.slow
def test_plausible_parameters_of_a_process_are_those_of_a_quadrature():
    data = host.HostRows(
        INPUTS[:, :1],
        TARGETS[:, :1],
        np.ones((24, 1)),
        np.zeros(24),
        np.ones(24),
        np.zeros(24),
        np.ones(24),
        np.zeros(24),
    )
    origin = Parameters(made(Gaussian(1.0, 1.0)), np.asarray(0.05))
    landscape = Landscape(data, origin, learn_noise=False)
    grid = np.stack(np.meshgrid(np.linspace(-3, 2, 41), np.linspace(-4, 6, 41), indexing="ij"), axis=-1).reshape(-1, 2)
    heights = -np.array([landscape.integrated(logs) for logs in grid])
    share = np.exp(heights - heights.max())
    share /= share.sum()
    best = maximise(data, origin, origin, 100, learn_noise=False, least_noise=1e-8).parameters
    drawn = plausible(landscape, best, 2000, np.random.default_rng(0))
    logs = np.array([landscape.logs(one) for _, one in drawn])
    assert within_errors(logs, share @ grid)
    assert within_errors(logs**2, share @ grid**2)


@pytest.fixture(scope="module")
def mixed():
    return fit_regressor(INPUTS, TARGETS[:, :1], RegressorSettings(restarts=0), Gaussian).posterior


def test_a_mixture_has_the_moments_of_its_parts(mixed):
    assert isinstance(mixed, MixedPosterior)
    assert len(mixed.parts) == 64
    means, covariances = map(np.array, zip(*(part.predict(NEW, full=True) for part in mixed.parts), strict=True))
    second = covariances.mean(axis=0) + np.mean([np.outer(m, m) for m in means[:, :, 0]], axis=0)
    mean, covariance = mixed.predict(NEW, full=True)
    np.testing.assert_allclose(mean, means.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(covariance / mixed.scale**2, second - np.outer(mean, mean), atol=1e-10)
    np.testing.assert_allclose(mixed.predict(NEW)[1], np.diag(covariance), rtol=1e-9)


def test_samples_of_a_mixture_have_its_moments(mixed):
    mean, covariance = mixed.predict(NEW, full=True)
    drawn = mixed.sample(NEW, 4000, np.random.default_rng(0))[:, 0].T
    assert within_errors(drawn, mean[:, 0])
    assert within_errors((drawn - mean[:, 0]) ** 2, np.diag(covariance))


def test_parameters_that_are_given_are_certain():
    found = fit_regressor(INPUTS, TARGETS, RegressorSettings(learn=False), Gaussian(1.0), noise=0.1).posterior
    assert isinstance(found, ExactPosterior)
    assert found.scale == 1.0


@pytest.mark.slow
def test_intervals_cover_with_25_rows_and_a_kernel_to_learn():
    """Of functions drawn from a process: what a point estimate of the parameters misses by far."""
    covered, rng = [], np.random.default_rng(3)
    for _ in range(200):
        places = rng.uniform(0, 4, size=(45, 1))
        truth = host.matrix(made(Gaussian(1.0)), places) + 1e-9 * np.eye(45)
        values = np.linalg.cholesky(truth) @ rng.normal(size=45) + 0.2 * rng.normal(size=45)
        model = fit_regressor(places[:25], values[:25, None], RegressorSettings(restarts=0), Gaussian).posterior
        mean, variance = model.predict(places[25:])
        deviations = np.sqrt(variance + model.observation_noise)
        covered.append(np.mean(np.abs(values[25:] - mean[:, 0]) < 1.96 * deviations))
    assert 0.93 < np.mean(covered) < 0.98


def test_values_at_one_place_are_scattered_by_the_noise():
    """The search once started from a noise of 0.1, whatever the scatter, and stayed within 10⁵ of it."""
    values = 1e8 * np.random.default_rng(0).normal(size=(24, 1))
    found = fit_regressor(np.full((24, 1), 5.0), values, RegressorSettings(restarts=0, mean="zero"), Matern32).posterior
    assert 0.3 < found.noise / np.var(values) < 3


def test_plausible_parameters_know_of_the_mean_that_was_found_with_them():
    """Of ten rows of noise about an unknown mean, 1/noise is a gamma law of nine degrees of freedom, not of ten."""
    targets = np.random.default_rng(0).normal(size=(10, 1))
    ones, zeros = np.ones(10), np.zeros(10)
    data = host.HostRows(np.arange(10.0)[:, None], targets, np.ones((10, 1)), zeros, ones, zeros, ones, zeros)
    start = Parameters(made(Gaussian(1e-3, 1e-9)), np.asarray(1.0))
    landscape = Landscape(data, start, learn_noise=True, spread=100.0)
    logs = np.tile(landscape.logs(start), (400, 1))
    logs[:, -1] = np.linspace(-3, 3, 400)
    heights = -np.array([landscape.integrated(one) for one in logs])
    squares = np.sum((targets - targets.mean()) ** 2)
    wanted = -9 / 2 * logs[:, -1] - squares / 2 * np.exp(-logs[:, -1])
    np.testing.assert_allclose(heights - heights[0], wanted - wanted[0], atol=1e-2)

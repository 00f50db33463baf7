"""The information of the parameters of a GP, and searches that take their steps by it, against brute force."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from thalweg.descent import Status
from thalweg.kernels import Gaussian, Laplacian, Matern12, Matern32, Matern52
from thalweg.processes import evidence, exact, host
from thalweg.processes.evidence import maximise
from thalweg.processes.exact import Observations, Parameters
from thalweg.processes.given import Given
from thalweg.processes.host import HostRows
from thalweg.processes.means import Mean
from thalweg.threads import enough_threads

RNG = np.random.default_rng(0)
ROWS = 64
INPUTS = np.concatenate([RNG.normal(size=(ROWS, 2)), np.zeros((6, 2))])
INPUTS[ROWS:] = INPUTS[:6]  # rows at one place
TARGETS = np.stack([np.sin(2 * INPUTS[:, 0]), INPUTS[:, 1]], axis=1) + 0.1 * RNG.normal(size=(ROWS + 6, 2))
KERNELS = [
    Matern12([1.0, 2.0], 1.5),
    Matern52(1.3, 0.7),
    Gaussian([1.0, 2.0], 1.5) + Matern32([2.0, 0.5], 0.3),
]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True), enough_threads(ROWS):
        yield


def made(kernel, noise=0.1):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), Parameters(kernel, np.asarray(noise)))


def rows(targets=TARGETS, mean="constant", known=0.02):
    given = Given.of(INPUTS, targets, np.full(len(INPUTS), known), 1.0 + np.arange(len(INPUTS)) % 2)
    return given.merged(Mean.of(mean, given.inputs), separate=False)


def derivatives(parameters, data):
    """A, and its derivatives in the logarithms of all parameters, by differences."""
    leaves, structure = jax.tree.flatten(parameters)

    def covariance(leaves):
        moved = jax.tree.unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves])
        return np.asarray(moved.kernel(data.inputs)) + np.diag(data.variances(np.asarray(moved.noise)))

    found = []
    for place, leaf in enumerate(leaves):
        for index in np.ndindex(np.shape(leaf)):
            sides = []
            for step in (1e-5, -1e-5):
                changed = [np.array(other) for other in leaves]
                changed[place][index] *= np.exp(step)
                sides.append(covariance(changed))
            found.append((sides[0] - sides[1]) / 2e-5)
    return covariance(leaves), np.array(found)


def definition(parameters, data):
    """½ Σ αᵀ∂A P ∂A α over targets, with what rows at one place say of the noise."""
    covariance, moved = derivatives(parameters, data)
    inverse, basis = np.linalg.inv(covariance), data.basis
    projected = inverse - inverse @ basis @ np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse)
    found = np.einsum("int,nm,jmt->ij", moved @ projected @ data.targets, projected, moved @ projected @ data.targets)
    share = parameters.noise / (parameters.noise + data.known)
    found[-1, -1] += data.targets.shape[1] * np.sum((data.copies - 1) * share**2)
    return found / 2


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_information_is_that_of_the_definition_on_the_host_and_by_the_program(kernel):
    data, parameters = rows(), made(kernel)
    assert len(data.inputs) == ROWS
    loss, slope, found = data.loss_slope_and_information(parameters)
    np.testing.assert_allclose(found, definition(parameters, data), rtol=1e-6, atol=1e-6)
    theirs = Observations.padded(*data).loss_slope_and_information(parameters)
    np.testing.assert_allclose(theirs[2], found, rtol=1e-9, atol=1e-9)
    for one, other in zip(*map(jax.tree.leaves, ((loss, slope), theirs[:2])), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_strips_of_a_large_matrix_say_what_the_whole_one_says(monkeypatch):
    data, parameters = Observations.padded(*rows()), made(KERNELS[2])
    whole = data.loss_slope_and_information(parameters)
    monkeypatch.setattr(exact, "_STRIP", 24)
    strips = exact.Prepared(exact.informed.__wrapped__, exact.few)
    monkeypatch.setattr(exact, "informed", strips)
    for one, other in zip(*map(jax.tree.leaves, (whole, data.loss_slope_and_information(parameters))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_information_is_in_the_mean_that_of_fisher():
    parameters, empty = made(KERNELS[0]), rows(mean="zero", known=0.0)
    covariance, moved = derivatives(parameters, empty)
    left = np.linalg.solve(covariance, moved)
    expected = np.einsum("inm,jmn->ij", left, left) / 2
    root, rng = np.linalg.cholesky(covariance), np.random.default_rng(1)
    alone = empty._replace(copies=np.ones(ROWS), scatter=np.zeros(ROWS))
    drawn = [alone._replace(targets=root @ rng.standard_normal((ROWS, 1))) for _ in range(300)]
    found = np.array([one.loss_slope_and_information(parameters)[2] for one in drawn])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - expected) < 5 * error)


def test_many_targets_are_mixed_and_in_the_mean_over_their_signs_nothing_is_lost(monkeypatch):
    rng = np.random.default_rng(2)
    targets, parameters = TARGETS @ rng.normal(size=(2, 12)), made(KERNELS[0])
    flipped = [rng.choice([-1.0, 1.0], 12) for _ in range(300)]
    found = [rows(targets * flip).loss_slope_and_information(parameters)[2][0] for flip in flipped]
    expected = definition(parameters, rows(targets))[0]
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 5 * error)
    assert np.all(error > 0)


@pytest.mark.parametrize("kernel", [Matern32([1.4, 1.4], 1.0), KERNELS[2]], ids=["one", "sum"])
def test_scoring_ends_where_a_quasi_newton_search_does(kernel, monkeypatch):
    data, start = rows(TARGETS[:, :1]), made(kernel)
    scored = maximise(data, start, start, 200, True, 1e-8, worth=1e-4)
    monkeypatch.setattr(HostRows, "knows", lambda self, kernel: False)
    followed = maximise(data, start, start, 200, True, 1e-8, worth=1e-6)
    assert scored.status is followed.status is Status.CONVERGED
    assert scored.loss == pytest.approx(followed.loss, abs=0.01)


def test_a_start_that_is_far_off_is_left_in_few_steps():
    data = rows(TARGETS[:, :1])
    near, far = made(Gaussian([1.4, 1.4])), made(Gaussian([30.0, 0.02], 1e3), noise=5.0)
    best = maximise(data, near, near, 100, True, 1e-8)
    found = maximise(data, far, near, 100, True, 1e-8)
    assert found.loss < best.loss + 0.1
    assert found.steps < 40


def test_a_search_without_hope_ends_and_bounds_are_kept():
    data, start = rows(TARGETS[:, :1]), made(Gaussian([1.4, 1.4]))
    best = maximise(data, start, start, 100, True, 1e-8)
    early = maximise(data, start, start, 100, True, 1e-8, hopeless=best.loss - 1000.0)
    assert early.steps < best.steps
    bounded = maximise(data, start, start, 100, True, 1e-8, furthest=0.1)
    moved = np.log(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(bounded.parameters)]))
    begun = np.log(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)]))
    assert np.max(np.abs(moved - begun)) == pytest.approx(0.1, rel=1e-9)


def test_other_kernels_are_searched_by_slopes(monkeypatch):
    data = rows(TARGETS[:, :1])
    assert not data.knows(Laplacian(1.0))
    assert not Observations.padded(*data).knows(Laplacian(1.0))
    monkeypatch.setattr(evidence, "Scoring", None)
    start = made(Laplacian(1.0))
    assert maximise(data, start, start, 20, True, 1e-8).loss < data.loss(start)


def test_information_that_cannot_be_had_ends_a_search_where_it_is(monkeypatch):
    data, start = rows(TARGETS[:, :1]), made(Gaussian([1.4, 1.4]))
    monkeypatch.setattr(host, "_moves", lambda *_: np.full((ROWS, 3, 1), np.inf))
    found = maximise(data, start, start, 20, True, 1e-8)
    assert found.status is Status.STEPS_SPENT
    for one, other in zip(*map(jax.tree.leaves, (found.parameters, start)), strict=True):
        np.testing.assert_allclose(one, other)


@dataclass
class Tail:
    """A lengthscale that hardly matters, of which the information says nothing, and others that steps shorten with."""

    scale: float
    rate: float

    def value_slope_and_curvature(self, logs):
        length, other = logs
        matters, away = self.scale * np.exp(-self.rate * length), other - 1.5
        slope = np.array([length / 9 - self.rate * matters, 100 * away])
        return matters + length**2 / 18 + 50 * away**2, slope, np.diag([1 / 9, 100.0])

    def searched(self, start, hopeless=np.inf):
        search = evidence.Scoring(self, np.full(2, -50.0), np.full(2, 50.0), 100, 1e-3, 1.0, hopeless)
        assert search.run(np.array(start))
        return search

    def lowest(self):
        return min(self.value_slope_and_curvature(np.array([length, 1.5]))[0] for length in np.linspace(0, 9, 901))


def test_what_information_does_not_say_of_a_lengthscale_is_seen_from_slopes():
    tail = Tail(40.0, 2.0)
    search = tail.searched([0.0, 0.0])
    assert search.best[0] < tail.lowest() + 1e-2
    assert search.evaluations < 12


def test_what_slopes_say_takes_no_hope_away():
    tail = Tail(1000.0, 1.0)
    assert tail.searched([0.0, 1.5], hopeless=10.0).best[0] < tail.lowest() + 1e-2
    assert tail.searched([0.0, 1.5], hopeless=-3000.0).best[0] > 10.0

"""Labels by a latent process: the optimum of the bound, its kernel, weights, batches, and interruptions."""

import re
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.datasets import make_moons

from thalweg.descent import Status
from thalweg.gaussian import BernoulliLogit, KLToProcess, Likelihood, StudentT
from thalweg.gaussian.ascent import maximise_bound
from thalweg.gaussian.oracle import WeightLikelihood
from thalweg.gaussian.posteriors import Implicit
from thalweg.kernels import Gaussian, Linear, Matern32
from thalweg.processes import ClassifierSettings, fit_classifier, probabilities
from thalweg.processes.inference import LatentRows, infer
from thalweg.processes.learning import starting_kernels, subset_of_rows
from thalweg.runs import Run

KERNEL = Gaussian(lengthscale=0.7, variance=20.0)
X, LABELS = make_moons(60, noise=0.25, random_state=0)
Y = LABELS.astype(float)
FIXED = ClassifierSettings(BernoulliLogit(), jitter=1e-3, learn=False, tol=1e-4)


class Written(Likelihood):
    """Logistic labels without any closed form, as a user would write them."""

    labels, log_concave = True, True

    def log_prob(self, y, z):
        return -jnp.logaddexp(0.0, (1 - 2 * y) * z)


@pytest.fixture(scope="module")
def fixed():
    return fit_classifier(X, Y, FIXED, KERNEL)


def exact_bound(kernel, jitter):
    """The optimum of the bound by another road: L-BFGS over the mean and a full covariance's factor, whitened."""
    count = len(Y)
    root = np.linalg.cholesky(np.asarray(kernel(X)) + jitter * np.eye(count))
    lower = np.tril_indices(count)

    @jax.jit
    @jax.value_and_grad
    def loss(flat):
        u = flat[:count]
        factor = jnp.zeros((count, count)).at[lower].set(flat[count:])
        logs = jnp.diagonal(factor)
        factor = factor - jnp.diag(logs) + jnp.diag(jnp.exp(logs))
        m, spread = root @ u, root @ factor
        expected = BernoulliLogit().expected(Y, m, jnp.sum(spread**2, axis=1))
        kl = (u @ u + jnp.sum(factor**2) - count) / 2 - jnp.sum(logs)
        return kl - jnp.sum(expected.value)

    found = scipy.optimize.minimize(
        lambda flat: tuple(np.asarray(part) for part in loss(flat)),
        np.zeros(count + len(lower[0])),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 4000, "maxfun": 5000, "ftol": 1e-13, "gtol": 1e-7},
    )
    return -found.fun


def test_the_bound_is_the_optimum_over_all_gaussians(fixed):
    assert fixed.bound == pytest.approx(exact_bound(KERNEL, 1e-3), abs=1e-4)
    assert fixed.status is Status.CONVERGED
    assert fixed.residual <= 1e-4
    assert fixed.history.last["value"] == -fixed.bound
    assert len(fixed.history["step"]) == fixed.steps


def test_a_loose_tolerance_leaves_less_than_a_thousandth_of_a_nat(fixed):
    loose = fit_classifier(X, Y, replace(FIXED, tol=1e-2), KERNEL)
    assert loose.steps < fixed.steps
    assert 0 <= fixed.bound - loose.bound < 1e-3


def test_the_latent_process_is_exact_at_the_data_and_the_prior_far_away(fixed):
    """At the inputs V = (K⁻¹ + diag γ̃)⁻¹; without the jitter, which is part of K there only."""
    mean, variance = fixed.predict(np.concatenate([X, [[100.0, 100.0]]]))
    K = np.asarray(KERNEL(X))
    np.testing.assert_allclose(mean[:-1], K @ fixed.weights, atol=1e-10)
    B = np.eye(60) + np.sqrt(fixed.sites)[:, None] * (K + 1e-3 * np.eye(60)) * np.sqrt(fixed.sites)
    np.testing.assert_allclose(fixed.factor @ fixed.factor.T, B, atol=1e-10)
    spread = np.linalg.solve(fixed.factor, np.sqrt(fixed.sites)[:, None] * K)
    np.testing.assert_allclose(variance[:-1], np.diag(K) - np.sum(spread**2, axis=0), atol=1e-9)
    assert mean[-1] == pytest.approx(0, abs=1e-8)
    assert variance[-1] == pytest.approx(20.0)


def test_a_long_prediction_goes_by_tiles(fixed):
    many = np.resize(X, (2500, 2))
    np.testing.assert_allclose(fixed.predict(many).variance, np.resize(fixed.predict(X).variance, 2500), rtol=1e-12)


def test_learning_raises_the_bound_to_where_it_is_flat():
    settings = ClassifierSettings(BernoulliLogit(), tol=1e-4)
    given = lambda kernel: fit_classifier(X, Y, replace(settings, learn=False), kernel).bound
    learned = fit_classifier(X, Y, settings, KERNEL)
    assert learned.bound > given(KERNEL)
    lengthscale, variance = float(learned.kernel.lengthscale), float(learned.kernel.variance)
    assert given(Gaussian(lengthscale, variance)) == pytest.approx(learned.bound, abs=1e-5)
    for factor in (0.9, 1.1):
        for kernel in (Gaussian(lengthscale * factor, variance), Gaussian(lengthscale, variance * factor)):
            assert given(kernel) <= learned.bound + 1e-4


@pytest.mark.slow
def test_other_kernels_learn_too():
    learned = fit_classifier(X, Y, ClassifierSettings(BernoulliLogit()), Matern32(1.0, 5.0))
    assert isinstance(learned.kernel, Matern32)
    assert np.mean((learned.predict(X).mean > 0) == LABELS) > 0.85


@pytest.mark.slow
def test_batches_come_close_to_the_optimum(fixed):
    settings = replace(FIXED, batch_size=6, max_iter=60)
    found = fit_classifier(X, Y, settings, KERNEL)
    assert fixed.bound - 0.5 < found.bound <= fixed.bound
    assert fit_classifier(X, Y, settings, KERNEL).bound == found.bound


def test_weight_two_is_the_row_twice():
    weights = np.ones(60)
    weights[:10] = 2
    settings = replace(FIXED, jitter=0.0)
    weighted = fit_classifier(X[:50], Y[:50], settings, KERNEL, weights[:50])
    twice = np.concatenate([np.arange(50), np.arange(10)])
    repeated = fit_classifier(X[twice], Y[twice], settings, KERNEL)
    assert weighted.bound == pytest.approx(repeated.bound, abs=1e-5)
    np.testing.assert_allclose(weighted.predict(X).mean, repeated.predict(X).mean, atol=1e-4)


def test_duplicates_and_a_singular_kernel_are_no_trouble():
    rows = np.repeat(np.arange(30), 2)
    found = fit_classifier(X[rows], Y[rows], replace(FIXED, jitter=0.0), Gaussian(100.0, 1e4))
    assert np.isfinite(found.bound)
    assert np.all(found.predict(X).variance > 0)


@pytest.mark.slow
def test_a_likelihood_that_is_not_log_concave_keeps_a_covariance():
    found = fit_classifier(X, Y, replace(FIXED, likelihood=StudentT(3.0, 0.3)), KERNEL)
    assert np.isfinite(found.bound)
    assert np.all(found.predict(X).variance > 0)


def test_the_default_kernel_counts_equal_rows_once():
    once, twice = (starting_kernels(rows)[0] for rows in (X, np.repeat(X, 2, axis=0)))
    assert once == twice
    assert float(starting_kernels(np.ones((3, 2)))[0].lengthscale) == 1.0


def test_precision_is_double_whatever_is_switched_on(fixed):
    with jax.enable_x64(False):
        found = fit_classifier(X, Y, FIXED, Gaussian(0.7, 20.0))
        predicted = found.predict(X)
    assert found.bound == pytest.approx(fixed.bound, abs=1e-5)
    assert predicted.mean.dtype == np.float64


def test_fitted_is_plain_data(fixed):
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(fixed.kernel))
    for array in (fixed.inputs, fixed.weights, fixed.sites, fixed.factor):
        assert type(array) is np.ndarray
        assert len(array) == 60


class Impatient(BernoulliLogit):
    """Logistic labels at whose evaluation of some number Ctrl-C comes."""

    calls: list = eqx.field(static=True)
    last: int = eqx.field(static=True)

    def expected(self, y, m, v):
        self.calls.append(len(m))
        if len(self.calls) == self.last:
            raise KeyboardInterrupt
        return super().expected(y, m, v)


def interrupted_fit(call, inputs=X, targets=Y, **settings):
    with pytest.warns(UserWarning, match="interrupted"):
        return fit_classifier(inputs, targets, replace(FIXED, likelihood=Impatient([], call), **settings), KERNEL)


def test_an_interrupted_fit_keeps_the_last_step():
    found = interrupted_fit(4)
    assert found.status is Status.INTERRUPTED
    assert found.steps == 2
    assert np.isfinite(found.bound)


def test_interrupted_learning_keeps_the_best_kernel(fixed):
    found = interrupted_fit(60, learn=True)
    assert found.status is Status.INTERRUPTED
    assert found.bound >= fixed.bound - 1e-6
    assert fit_classifier(X, Y, FIXED, found.kernel).bound == pytest.approx(found.bound, abs=0.1)


@pytest.mark.parametrize("learn", [False, True])
def test_before_the_first_step_an_interrupt_is_raised(learn):
    with pytest.raises(KeyboardInterrupt):
        fit_classifier(X, Y, replace(FIXED, learn=learn, likelihood=Impatient([], 1)), KERNEL)


@pytest.fixture
def compiled():
    programs = []
    note = lambda event, seconds, **_: programs.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(note)
    yield programs
    jax.monitoring.unregister_event_duration_listener(note)


def test_logistic_labels_compile_nothing(compiled):
    inputs = np.random.default_rng(0).normal(size=(83, 7))
    found = fit_classifier(inputs, (inputs[:, 0] > 0).astype(float), ClassifierSettings(BernoulliLogit()))
    mean, variance = found.predict(inputs)
    mine = probabilities(BernoulliLogit(), mean, variance)
    assert not compiled
    assert np.all((mine > 0) & (mine < 1))


def test_a_likelihood_without_a_closed_form_ends_where_the_closed_form_does(fixed):
    found = fit_classifier(X, Y, replace(FIXED, likelihood=Written()), KERNEL)
    assert fixed.bound == pytest.approx(found.bound, abs=1e-7)
    np.testing.assert_allclose(fixed.predict(X).mean, found.predict(X).mean, atol=1e-4)
    np.testing.assert_allclose(fixed.predict(X).variance, found.predict(X).variance, rtol=1e-4)


def test_a_device_ends_where_the_host_does(fixed):
    K = np.asarray(KERNEL(X)) + 1e-3 * np.eye(60)
    oracle = WeightLikelihood(BernoulliLogit(), Y, np.ones(60), 0.0, None)
    parts = jax.device_put((oracle, KLToProcess(K), Implicit.prior(K)))
    found = maximise_bound(*parts, tol=1e-4, max_iter=50)
    assert isinstance(found.x.mean, jax.Array)
    assert -found.loss == pytest.approx(fixed.bound, abs=1e-7)


def test_the_posterior_of_another_kernel_is_a_good_start(fixed):
    rows = LatentRows(X, Y, np.ones(60))
    near = infer(Gaussian(0.75, 22.0), rows, FIXED, 0)
    found = infer(KERNEL, rows, FIXED, 0, near)
    assert found.bound == pytest.approx(fixed.bound, abs=1e-6)
    assert found.steps < fixed.steps


def test_where_whole_steps_overshoot_few_shorter_ones_do():
    """Whole steps go to and fro for a variance of 100 and independent rows."""
    K = 100.0 * np.eye(60)
    oracle = WeightLikelihood(BernoulliLogit(), Y, np.ones(60), 0.0, None)
    found = maximise_bound(oracle, KLToProcess(K), Implicit.prior(K), tol=1e-2, max_iter=100)
    assert found.status is Status.CONVERGED
    assert found.steps <= 12


@pytest.mark.slow
def test_learning_many_rows_starts_on_a_subset_of_them():
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    calls = []
    settings = ClassifierSettings(Impatient(calls, 0))
    found = fit_classifier(inputs, labels.astype(float), settings)
    assert set(calls) == {256, 600}
    assert calls == sorted(calls)
    assert len(found.inputs) == 600
    again = fit_classifier(inputs, labels.astype(float), settings, found.kernel)
    assert found.bound == pytest.approx(again.bound, abs=0.05)


def test_interrupted_on_a_subset_of_the_rows_the_posterior_is_of_that_subset():
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    found = interrupted_fit(10, inputs, labels.astype(float), learn=True, tol=1e-2)
    assert found.status is Status.INTERRUPTED
    assert len(found.inputs) == len(found.weights) == len(found.factor) == 256
    assert np.mean((found.predict(inputs).mean > 0) == labels) > 0.8


def test_after_an_interrupt_the_process_of_the_next_class_takes_a_few_steps():
    """Those of all other classes were learned to their end: Ctrl-C took half a minute."""
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    settings = replace(FIXED, likelihood=Impatient([], 10), learn=True, tol=1e-2)

    def fit_both():
        with Run("classes"):
            first = fit_classifier(inputs, labels.astype(float), settings, KERNEL)
            return first, fit_classifier(inputs, 1.0 - labels, replace(settings, likelihood=Impatient([], 0)), KERNEL)

    with pytest.warns(UserWarning, match="interrupted"):
        first, second = fit_both()
    assert first.status is second.status is Status.INTERRUPTED
    assert len(second.inputs) == 256
    assert second.kernel.lengthscale == KERNEL.lengthscale
    assert np.mean((second.predict(inputs).mean < 0) == labels) > 0.8


def test_a_rare_class_is_in_the_subset():
    targets = np.zeros(1000)
    targets[[3, 500, 900]] = 1
    part = subset_of_rows(LatentRows(np.zeros((1000, 1)), targets, np.ones(1000)), 0)
    assert len(part.inputs) == 256
    assert part.targets.sum() == 3


@pytest.mark.parametrize("learn", [False, True])
def test_the_scale_of_features_is_chosen_by_the_bound(learn):
    settings = ClassifierSettings(BernoulliLogit(), learn=learn)
    scaled = X * np.array([1e4, 1.0]) + np.array([1e8, 0.0])
    standardised = (X - X.mean(axis=0)) / X.std(axis=0)
    raw, usual = fit_classifier(scaled, Y, settings), fit_classifier(standardised, Y, settings)
    assert raw.bound == pytest.approx(usual.bound, abs=1e-3)
    assert raw.kernel.lengthscale.shape == (2,)
    np.testing.assert_allclose(raw.kernel.lengthscale / usual.kernel.lengthscale, scaled.std(axis=0), rtol=1e-3)
    np.testing.assert_allclose(raw.predict(scaled).mean, usual.predict(standardised).mean, atol=1e-2)
    # Where the features as they are do better, they stay so.
    assert fit_classifier(X, Y, settings).kernel.lengthscale.shape == ()


def test_constant_and_tiny_features_do_no_harm():
    settings = ClassifierSettings(BernoulliLogit(), learn=False)
    plain = fit_classifier(X, Y, settings)
    for rows in (np.column_stack([X, np.full(60, 7.0)]), X * 1e-200, X * 1e150):
        assert fit_classifier(rows, Y, settings).bound == pytest.approx(plain.bound, abs=1e-6)


def test_a_kernel_by_its_name():
    settings = ClassifierSettings(BernoulliLogit(), learn=False)
    named = fit_classifier(X, Y, settings, "matern32")
    assert isinstance(named.kernel, Matern32)
    assert named.bound == fit_classifier(X, Y, settings, Matern32).bound
    with pytest.raises(ValueError, match="kernel must be one of 'rbf'"):
        fit_classifier(X, Y, settings, "matern")


def test_sums_and_products_learn_by_derivatives():
    settings = ClassifierSettings(BernoulliLogit(), tol=1e-3)
    kernel = 10.0 * Gaussian(1.0) + Linear(1.0)
    learned = fit_classifier(X, Y, settings, kernel)
    given = lambda kernel: fit_classifier(X, Y, replace(settings, learn=False, tol=1e-4), kernel).bound
    assert learned.bound > given(kernel) + 1
    for factor in (0.8, 1.25):
        leaves, structure = jax.tree.flatten(learned.kernel)
        for place in range(len(leaves)):
            moved = [leaf * factor if place == other else leaf for other, leaf in enumerate(leaves)]
            assert given(jax.tree.unflatten(structure, moved)) < learned.bound + 0.01


def test_verbose_shows_the_rows_the_bound_and_the_kernel(capsys):
    fit_classifier(X, Y, ClassifierSettings(BernoulliLogit(), verbose=True), KERNEL)
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"60 rows, bound -\d+.\d\d: Gaussian\(", shown)

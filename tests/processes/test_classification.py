"""Labels by a latent process: the optimum of the bound, its kernel, weights, batches, and interruptions."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.datasets import make_moons

from thalweg.descent import Status
from thalweg.gaussian import BernoulliLogit, StudentT
from thalweg.kernels import Gaussian, Linear, Matern32
from thalweg.processes import ClassifierSettings, default_kernel, fit_classifier, inference, learning, sites

KERNEL = Gaussian(lengthscale=0.7, variance=20.0)
X, LABELS = make_moons(60, noise=0.25, random_state=0)
Y = LABELS.astype(float)
FIXED = ClassifierSettings(BernoulliLogit(), jitter=1e-3, learn=False, tol=1e-4)


class Elsewhere(BernoulliLogit):
    """The same likelihood, which the host does not know."""


@pytest.fixture(scope="module")
def fixed():
    return fit_classifier(X, Y, FIXED, KERNEL)


def exact_bound(kernel, jitter):
    """The optimum of the bound by another road: L-BFGS over the mean and a full covariance's factor, whitened."""
    count = len(Y)
    root = jnp.linalg.cholesky(kernel(jnp.asarray(X)) + jitter * jnp.eye(count))
    lower = np.tril_indices(count)
    targets = jnp.asarray(Y)

    @jax.jit
    @jax.value_and_grad
    def loss(flat):
        u = flat[:count]
        factor = jnp.zeros((count, count)).at[lower].set(flat[count:])
        logs = jnp.diagonal(factor)
        factor = factor - jnp.diag(logs) + jnp.diag(jnp.exp(logs))
        m, spread = root @ u, root @ factor
        expected = BernoulliLogit().expected(targets, m, jnp.sum(spread**2, axis=1))
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


@pytest.mark.parametrize("step", [1e-4, 1e4])
def test_recovers_from_a_bad_step(fixed, step):
    assert fit_classifier(X, Y, replace(FIXED, step=step), KERNEL).bound == pytest.approx(fixed.bound, abs=1e-5)


def test_the_latent_process_is_exact_at_the_data_and_the_prior_far_away(fixed):
    """At the inputs V = (K⁻¹ + diag γ̃)⁻¹; without the jitter, which is part of K there only."""
    mean, variance = fixed.predict(np.concatenate([X, [[100.0, 100.0]]]))
    K = np.asarray(KERNEL(jnp.asarray(X)))
    np.testing.assert_allclose(mean[:-1], K @ fixed.weights, atol=1e-10)
    B = np.eye(60) + np.sqrt(fixed.sites)[:, None] * (K + 1e-3 * np.eye(60)) * np.sqrt(fixed.sites)
    np.testing.assert_allclose(fixed.factor @ fixed.factor.T, B, atol=1e-10)
    spread = np.linalg.solve(fixed.factor, np.sqrt(fixed.sites)[:, None] * K)
    np.testing.assert_allclose(variance[:-1], np.diag(K) - np.sum(spread**2, axis=0), atol=1e-9)
    assert mean[-1] == pytest.approx(0, abs=1e-8)
    assert variance[-1] == pytest.approx(20.0)


def test_a_long_prediction_goes_by_strips(fixed):
    many = np.resize(X, (1500, 2))
    np.testing.assert_allclose(fixed.predict(many).variance, np.resize(fixed.predict(X).variance, 1500), rtol=1e-12)


def test_learning_raises_the_bound_to_where_it_is_flat():
    settings = ClassifierSettings(BernoulliLogit(), restarts=0, tol=1e-4)
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
    learned = fit_classifier(X, Y, ClassifierSettings(BernoulliLogit(), restarts=0), Matern32(1.0, 5.0))
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
    # 50 rows and 10 of them twice are 60: nothing is compiled again.
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
    once, twice = default_kernel(X), default_kernel(np.repeat(X, 2, axis=0))
    assert once == twice
    assert float(default_kernel(np.ones((3, 2))).lengthscale) == 1.0


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


def interrupted_at(call, monkeypatch):
    """Let the given inference of a fit be interrupted from the keyboard after two steps."""
    whole, calls = inference.climb, []

    def impatient(K, labels, near, step, tol, max_iter):
        calls.append(None)
        if len(calls) != call:
            return whole(K, labels, near, step, tol, max_iter)
        return whole(K, labels, near, step, 0.0, 2)._replace(status=Status.INTERRUPTED)

    monkeypatch.setattr(inference, "climb", impatient)


def test_an_interrupted_fit_keeps_what_was_found(monkeypatch):
    interrupted_at(1, monkeypatch)
    found = fit_classifier(X, Y, FIXED, KERNEL)
    assert found.status is Status.INTERRUPTED
    assert found.steps == 2
    assert np.isfinite(found.bound)


def test_interrupted_learning_keeps_the_best_kernel(monkeypatch, fixed):
    interrupted_at(4, monkeypatch)
    found = fit_classifier(X, Y, replace(FIXED, learn=True), KERNEL)
    assert found.status is Status.INTERRUPTED
    assert found.bound >= fixed.bound - 1e-6
    monkeypatch.undo()
    assert fit_classifier(X, Y, FIXED, found.kernel).bound == pytest.approx(found.bound, abs=0.1)


def test_before_anything_was_found_an_interruption_is_passed_on(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "climb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_classifier(X, Y, replace(FIXED, learn=True), KERNEL)


@pytest.fixture
def compiled():
    programs = []
    note = lambda event, seconds, **_: programs.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(note)
    yield programs
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize(("learn", "most", "rows"), [(False, 4, 97), (True, 6, 113)])
def test_a_first_fit_compiles_few_programs(learn, most, rows, compiled):
    # No other test has this many rows and features.
    inputs = np.random.default_rng(0).normal(size=(rows, 7))
    settings = ClassifierSettings(Elsewhere(), learn=learn, restarts=0)
    fit_classifier(inputs, (inputs[:, 0] > 0).astype(float), settings, None if learn else Gaussian(2.0, 5.0))
    assert 0 < len(compiled) <= most


def test_logistic_labels_compile_nothing(compiled):
    inputs = np.random.default_rng(0).normal(size=(83, 7))
    fit_classifier(inputs, (inputs[:, 0] > 0).astype(float), ClassifierSettings(BernoulliLogit()))
    assert not compiled


def test_the_host_ends_where_compiled_steps_end(fixed):
    settings = replace(FIXED, likelihood=Elsewhere())
    compiled = fit_classifier(X, Y, settings, KERNEL)
    assert fixed.bound == pytest.approx(compiled.bound, abs=1e-7)
    np.testing.assert_allclose(fixed.predict(X).mean, compiled.predict(X).mean, atol=1e-4)
    np.testing.assert_allclose(fixed.predict(X).variance, compiled.predict(X).variance, rtol=1e-4)
    learned = [fit_classifier(X, Y, replace(one, learn=True, restarts=0), KERNEL) for one in (FIXED, settings)]
    assert learned[0].bound == pytest.approx(learned[1].bound, abs=1e-4)


def test_where_whole_steps_overshoot_few_shorter_ones_do():
    """The sight: steps that went to and fro, 69 of them and as many halvings."""
    found = sites.climb(100.0 * np.eye(60), sites.Labels(Y, np.ones(60)), None, 1.0, 1e-2, 100)
    assert found.status is Status.CONVERGED
    assert found.steps <= 12  # 29 if each is a whole one


def test_variances_keep_their_digits_where_sites_are_next_to_nothing():
    """A label that is certain says nothing of its place; diag V = (1 − diag B⁻¹)/sites would divide rounding by 0."""
    inputs = np.concatenate([X, [[-40.0, 40.0]], [[-40.1, 40.0]]])
    K = np.asarray(KERNEL(jnp.asarray(inputs))) + 1e-3 * np.eye(62)
    exact = np.concatenate([np.linspace(0.01, 0.25, 60), [1e-14, 0.0]])
    inverse = np.linalg.inv(np.linalg.cholesky(np.eye(62) + np.sqrt(exact)[:, None] * K * np.sqrt(exact)))
    labels = sites.Labels(np.zeros(62), np.ones(62))
    found = labels.state(K, np.zeros(62), exact, inverse, 0.0).variance
    spread = inverse @ (np.sqrt(exact)[:, None] * K)
    np.testing.assert_allclose(found, np.diag(K) - np.sum(spread**2, axis=0), rtol=1e-8)


@pytest.mark.slow
def test_learning_many_rows_starts_on_a_part_of_them():
    """From more than 512 rows; the sight: 1,000 rows took 76 s."""
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    sizes, whole = [], learning.infer

    def noted(kernel, problem, *rest):
        sizes.append(problem.rows)
        return whole(kernel, problem, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "infer", noted)
        found = fit_classifier(inputs, labels.astype(float), ClassifierSettings(BernoulliLogit()))
    assert set(sizes) == {256, 600}
    assert sizes == sorted(sizes)
    # A step is a factorisation, and an evaluation about eight steps.
    assert sizes.count(600) <= 8
    assert len(found.inputs) == 600


@pytest.mark.slow
def test_what_was_started_on_a_part_ends_as_high_as_what_was_not(monkeypatch):
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    found = fit_classifier(inputs, labels.astype(float), ClassifierSettings(BernoulliLogit()))
    monkeypatch.setattr(learning, "_ALL", 600)
    whole = fit_classifier(inputs, labels.astype(float), ClassifierSettings(BernoulliLogit(), tol=1e-3))
    assert found.bound == pytest.approx(whole.bound, abs=0.05)


def test_interrupted_on_a_part_of_the_rows_the_posterior_is_of_that_part(monkeypatch):
    inputs, labels = make_moons(600, noise=0.25, random_state=1)
    interrupted_at(4, monkeypatch)
    found = fit_classifier(inputs, labels.astype(float), ClassifierSettings(BernoulliLogit()))
    assert found.status is Status.INTERRUPTED
    assert len(found.inputs) == len(found.weights) == len(found.factor) == 256
    assert np.mean((found.predict(inputs).mean > 0) == labels) > 0.8


def test_a_rare_class_is_seen_by_the_part():
    targets = np.zeros(1000)
    targets[[3, 500, 900]] = 1
    part = learning._part(targets, 0)
    assert len(part) == 256
    assert targets[part].sum() == 3


@pytest.mark.parametrize("learn", [False, True])
def test_the_scale_of_features_is_chosen_by_the_bound(learn):
    """The sight: features (1e8 ± 1, an income, 0/1) had a log-loss of 0.497 where a linear model has 0.421."""
    settings = ClassifierSettings(BernoulliLogit(), learn=learn, restarts=0)
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
    settings = ClassifierSettings(BernoulliLogit(), restarts=0, tol=1e-3)
    kernel = 10.0 * Gaussian(1.0) + Linear(1.0)
    learned = fit_classifier(X, Y, settings, kernel)
    given = lambda kernel: fit_classifier(X, Y, replace(settings, learn=False, tol=1e-4), kernel).bound
    assert learned.bound > given(kernel) + 1
    for factor in (0.8, 1.25):
        leaves, structure = jax.tree.flatten(learned.kernel)
        for place in range(len(leaves)):
            moved = [leaf * factor if place == other else leaf for other, leaf in enumerate(leaves)]
            assert given(jax.tree.unflatten(structure, moved)) < learned.bound + 0.01


def test_verbose_is_one_line_with_start_bound_and_kernel(capsys):
    fit_classifier(X, Y, ClassifierSettings(BernoulliLogit(), verbose=True))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 1
    assert re.search(r"60 rows, start 1, bound -\d+.\d\d, best -\d+.\d\d: Gaussian\(", lines[0])


@pytest.mark.slow
def test_many_rows_stay_on_the_device_and_come_to_the_same(monkeypatch):
    settings = ClassifierSettings(Elsewhere(), restarts=0)
    few = fit_classifier(X, Y, settings)
    monkeypatch.setattr(inference, "_FEW", 10)
    many = fit_classifier(X, Y, settings)
    assert many.bound == pytest.approx(few.bound, abs=1e-8)
    np.testing.assert_allclose(many.factor, few.factor, atol=1e-6)

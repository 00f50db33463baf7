"""GPRegressor as people call it: bare, on raw data, with honest intervals and clear errors."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from thalweg import GPRegressor
from thalweg.kernels import Gaussian, Periodic, Sum
from thalweg.processes.exact import ExactEvidence

RNG = np.random.default_rng(0)
ROWS = 250
"""Of half as many rows, four times as many parameters are drawn, and a fit takes twice as long."""
X = RNG.uniform(-3, 3, size=(ROWS, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=ROWS)
NEW = RNG.uniform(-3, 3, size=(400, 2))
TRUTH = np.sin(2 * NEW[:, 0])
OBSERVED = TRUTH + 0.2 * RNG.normal(size=400)


@pytest.fixture(scope="module")
def model():
    return GPRegressor(random_state=0).fit(X, Y)


# Weights are precisions: a row seen twice says how large the noise is, one of weight 2 does not.
NOT_REPEATS = {"check_sample_weight_equivalence_on_dense_data": "weights divide the noise, and repeat nothing"}


@pytest.mark.slow
@parametrize_with_checks([GPRegressor("rbf", restarts=0)], expected_failed_checks=lambda _: NOT_REPEATS)
def test_contract(estimator, check):
    check(estimator)


def test_bare_call(model):
    mean, std = model.predict(NEW, return_std=True)
    assert np.sqrt(np.mean((mean - TRUTH) ** 2)) < 0.15
    assert 0.9 < np.mean(np.abs(OBSERVED - mean) < 1.96 * std) < 0.99
    assert model.noise_ == pytest.approx(0.04, rel=0.5)
    assert model.kernel_.lengthscale[1] > 3 * model.kernel_.lengthscale[0]
    assert model.method_ == "exact"


@pytest.mark.slow
def test_three_ways_come_to_one_model():
    x = np.sort(RNG.uniform(0, 20, size=600))[:, None]
    y = np.sin(x[:, 0]) + 0.2 * RNG.normal(size=600)
    new = np.linspace(0.5, 19.5, 200)[:, None]
    found = {way: GPRegressor("rbf", method=way, random_state=0).fit(x, y) for way in ("exact", "iterative", "grid")}
    mean, std = found["exact"].predict(new, return_std=True)
    assert found["exact"].log_marginal_likelihood_error_ == 0
    for way in ("iterative", "grid"):
        model = found[way]
        assert model.method_ == way
        same, spread = model.predict(new, return_std=True)
        np.testing.assert_allclose(same, mean, atol=0.05)
        np.testing.assert_allclose(spread, std, rtol=0.05)
        # Parameters are not quite those of the exact way, where the likelihood is highest.
        gap = found["exact"].log_marginal_likelihood_ - model.log_marginal_likelihood_
        assert -5 * model.log_marginal_likelihood_error_ - 0.1 < gap < 5 * model.log_marginal_likelihood_error_ + 1


def test_units_offsets_and_constant_columns_do_not_matter(model):
    """Constant columns do not even change the random numbers that parameters are drawn with."""
    units, offset = np.array([1e-6, 1e7]), np.array([1e3, -1e8])
    raw = lambda rows: np.insert(rows * units + offset, [0, 2], 7.0, axis=1)
    other = GPRegressor(random_state=0).fit(raw(X), 1e9 + 1e4 * Y)
    mean, std = other.predict(raw(NEW[:50]), return_std=True)
    expected, spread = model.predict(NEW[:50], return_std=True)
    np.testing.assert_allclose((mean - 1e9) / 1e4, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(std / 1e4, spread, rtol=1e-3, atol=1e-3)


def test_a_second_term_is_found_where_there_is_one(model):
    """Features that act alone at scales of their own; what one kernel is enough for stays one."""
    rng = np.random.default_rng(1)
    rows = rng.uniform(-3, 3, size=(ROWS, 3))
    seen = np.sin(4 * rows[:, 0]) + 3 * np.sin(rows[:, 1] + rows[:, 2]) + 0.1 * rng.normal(size=ROWS)
    both = GPRegressor(random_state=0).fit(rows, seen)
    assert isinstance(both.kernel_, Sum)
    alone = GPRegressor(type(both.kernel_.k1), restarts=0, random_state=0).fit(rows, seen)
    # Four parameters more, at half the logarithm of the number of rows each.
    assert both.log_marginal_likelihood_ > alone.log_marginal_likelihood_ + 2 * np.log(ROWS)
    assert not isinstance(model.kernel_, Sum)


def test_observations_vary_more_than_the_function(model):
    mean, variance = model.latent(NEW[:5])
    same, std = model.predict(NEW[:5], return_std=True)
    np.testing.assert_array_equal(mean, same)
    noise = std**2 - variance
    np.testing.assert_allclose(noise, noise[0])
    assert noise[0] == pytest.approx(model.noise_, rel=0.3)  # one is an average over plausible parameters
    _, covariance = model.predict(NEW[:5], return_cov=True)
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-6)
    assert model.sample_y(NEW[:5], 3).shape == (5, 3)


def test_a_mean_of_ones_own(model):
    line = lambda rows: 100 * rows[:, 0]
    found = GPRegressor(Gaussian([1.0, 5.0]), noise=0.04, learn=False, mean=line).fit(X, Y + line(X))
    assert found.predict([[50.0, 0.0]])[0] == pytest.approx(5000, abs=5)


def test_two_targets_share_the_kernel():
    both = GPRegressor(Gaussian([1.0, 5.0]), noise=0.04, learn=False).fit(X, np.stack([Y, -2 * Y], axis=1))
    one = GPRegressor(Gaussian([1.0, 5.0]), noise=0.04, learn=False).fit(X, Y)
    np.testing.assert_allclose(both.predict(NEW), np.outer(one.predict(NEW), [1, -2]), atol=1e-9)
    assert both.sample_y(NEW[:4], 3).shape == (4, 2, 3)


def test_targets_in_different_units_have_their_own_intervals():
    units = np.array([1e-3, 1e4])
    both = GPRegressor("rbf", restarts=0, random_state=0).fit(X, Y[:, None] * units)
    one = GPRegressor("rbf", restarts=0, random_state=0).fit(X, Y)
    new = NEW[:50]
    mean, std = both.predict(new, return_std=True)
    assert std.shape == (50, 2)
    expected, spread = one.predict(new, return_std=True)
    np.testing.assert_allclose(mean / units, np.stack([expected] * 2, axis=1), atol=0.05)
    np.testing.assert_allclose(std / units, np.stack([spread] * 2, axis=1), rtol=0.2)
    np.testing.assert_allclose(both.latent(new)[1] / units**2, np.stack([one.latent(new)[1]] * 2, axis=1), atol=0.02)


def test_weights_are_precisions_and_leave_the_noise_to_be_learned():
    rng = np.random.default_rng(1)
    x, sd = rng.uniform(0, 6, size=(ROWS, 1)), rng.uniform(0.1, 0.5, size=ROWS)
    y = np.sin(x[:, 0]) + sd * rng.normal(size=ROWS)
    new = np.linspace(0, 6, 50)[:, None]
    precise, large = (
        GPRegressor("rbf", restarts=0, random_state=0).fit(x, y, sample_weight=weights)
        for weights in (1 / sd**2, 1e8 / sd**2)
    )
    assert large.noise_ == pytest.approx(1e8 * precise.noise_)
    np.testing.assert_allclose(large.latent(new)[0], precise.latent(new)[0], rtol=1e-6, atol=1e-6)
    assert precise.noise_ == pytest.approx(1, rel=0.5)
    assert np.sqrt(np.mean((precise.latent(new)[0] - np.sin(new[:, 0])) ** 2)) < 0.1


def test_a_row_far_out_does_not_say_what_is_far_for_the_others():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, size=(ROWS, 1))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS)
    new = np.linspace(0, 5, 50)[:, None]
    model = GPRegressor("rbf", restarts=0, random_state=0).fit(np.append(x, [[1e6]], axis=0), np.append(y, 0.0))
    assert np.sqrt(np.mean((model.predict(new) - np.sin(new[:, 0])) ** 2)) < 0.04


def test_a_level_takes_no_digits_from_what_is_above_it():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, size=(ROWS, 1))
    y = 1e9 + np.round(1e-3 * (np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS)), 6)
    new = np.linspace(0, 5, 20)[:, None]
    high, low = (GPRegressor("rbf", restarts=0, random_state=0).fit(x, targets) for targets in (y, y - 1e9))
    np.testing.assert_allclose(high.predict(new) - 1e9, low.predict(new), atol=1e-6)


def test_a_target_that_is_constant_has_no_spread():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, size=(ROWS, 1))
    both = np.column_stack([np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS), np.full(ROWS, 7.0)])
    mean, std = GPRegressor("rbf", restarts=0, random_state=0).fit(x, both).predict(x, return_std=True)
    np.testing.assert_allclose(mean[:, 1], 7.0)
    assert np.all(std[:, 1] < 1e-6)
    assert np.all(std[:, 0] > 0.05)


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_targets_that_are_all_the_same_are_not_searched(kernel):
    """It took three times as long as a search where there is something to find."""
    with pytest.warns(UserWarning, match="y does not vary: rows tell nothing of its scale"):
        model = GPRegressor(kernel, random_state=0).fit(X, np.full(len(X), 7.0))
    assert model.n_iter_ == 0
    far = np.concatenate([X[:5], 100 + X[:5]])
    mean, std = model.predict(far, return_std=True)
    np.testing.assert_allclose(mean, 7.0)
    assert np.all((std > 0) & (std < 1e-3))


def test_a_table_given_twice_is_that_table():
    """Each row agreed with its copy to the last digit, and was taken to have no noise."""
    rng = np.random.default_rng(0)
    rows, new = rng.normal(size=(2, 60, 2))
    targets = rows[:, 0] + 0.3 * rng.normal(size=60)
    once, twice = (GPRegressor("rbf", random_state=0).fit(np.tile(rows, (k, 1)), np.tile(targets, k)) for k in (1, 2))
    assert twice.noise_ == once.noise_ > 0.01
    np.testing.assert_array_equal(twice.predict(new), once.predict(new))


def test_the_likelihood_of_several_targets_is_of_the_rows_that_count():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 2))
    targets = rows * [1.0, 50.0] + 0.3 * rng.normal(size=(40, 2)) * [1.0, 50.0]
    plain, twice, beside = (GPRegressor("rbf", restarts=0, random_state=0) for _ in range(3))
    plain.fit(rows, targets)
    twice.fit(np.tile(rows, (2, 1)), np.tile(targets, (2, 1)))
    beside.fit(np.vstack([rows, rows[:9] + 0.1]), np.vstack([targets, targets[:9]]), np.repeat([1.0, 0.0], [40, 9]))
    assert twice.log_marginal_likelihood_ == pytest.approx(plain.log_marginal_likelihood_, abs=1e-6)
    # Units are standard deviations of all targets given.
    assert beside.log_marginal_likelihood_ == pytest.approx(plain.log_marginal_likelihood_, abs=1.0)


def test_short_periods_are_not_taken_for_noise():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, size=(300, 1))
    model = GPRegressor("rbf", restarts=0, random_state=0).fit(x, np.sin(100 * x[:, 0]) + 0.1 * rng.normal(size=300))
    assert model.noise_ == pytest.approx(0.01, rel=0.5)


def two_waves(count, length):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, length, count))[:, None]
    truth = np.sin(X[:, 0]) + 0.5 * np.sin(7 * X[:, 0])
    return X, truth, truth + 0.3 * rng.normal(size=count)


def test_what_the_first_rows_take_for_noise_is_found_by_more_of_them():
    X, truth, y = two_waves(900, 30)
    model = GPRegressor("rbf", random_state=0).fit(X, y)
    assert model.kernel_.lengthscale[0] < 0.5  # 1.26 on the first 150 rows
    assert np.sqrt(np.mean((model.predict(X) - truth) ** 2)) < 0.15


@pytest.mark.slow
def test_a_family_that_few_rows_set_aside_comes_back():
    X, _, y = two_waves(3000, 100)
    likelihoods = [GPRegressor(kernel, random_state=0).fit(X, y).log_marginal_likelihood_ for kernel in ("rbf", None)]
    assert likelihoods[1] > likelihoods[0] - 0.5


def test_noise_that_all_rows_are_known_to_have_is_that_of_new_ones():
    model = GPRegressor("rbf", alpha=0.04, restarts=0, random_state=0).fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    assert 0.9 < np.mean(np.abs(OBSERVED - mean) < 1.96 * std) < 0.99


def test_known_noise_of_each_row():
    alpha = np.where(np.arange(ROWS) < 60, 1e-4, 100.0)
    found = GPRegressor(Gaussian([1.0, 5.0]), alpha=alpha, noise=0.0, learn=False).fit(X, Y)
    few = GPRegressor(Gaussian([1.0, 5.0]), alpha=1e-4, noise=0.0, learn=False).fit(X[:60], Y[:60])
    np.testing.assert_allclose(found.predict(NEW), few.predict(NEW), atol=0.1)


def test_a_kernel_is_learned_beside_noise_that_is_known():
    found = GPRegressor("rbf", alpha=np.full(ROWS, 0.04), noise=0.0, restarts=0, random_state=0).fit(X, Y)
    assert found.noise_ == 0
    assert np.sqrt(np.mean((found.predict(NEW) - TRUTH) ** 2)) < 0.15
    assert found.kernel_.lengthscale[1] > 3 * found.kernel_.lengthscale[0]


def test_solves_that_break_down_say_so_and_leave_the_model_as_it_was():
    model = GPRegressor(Gaussian([1e3, 1e3]), noise=1e-40, method="iterative", learn=False)
    with pytest.raises(ValueError, match="conjugate gradients broke down: a noise variance of 1e-40 is too small"):
        model.fit(X[:30], X[:30, 0])
    assert not hasattr(model, "kernel_")


def test_a_season_goes_on():
    time = np.arange(0, 4, 1 / 64)[:, None]
    wave = np.sin(2 * np.pi * time[:, 0]) + 0.1 * RNG.normal(size=len(time))
    found = GPRegressor(Periodic(1.02) * Gaussian(20.0), restarts=0, random_state=0).fit(time, wave)
    later = np.arange(4, 6, 1 / 12)[:, None]
    assert np.sqrt(np.mean((found.predict(later) - np.sin(2 * np.pi * later[:, 0])) ** 2)) < 0.2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": "matern"}, "kernel must be one of"),
        ({"kernel": 3.0}, "kernel"),
        ({"noise": -1.0}, "noise"),
        ({"alpha": [1.0, 2.0]}, r"alpha must be a number or have shape \(250,\), one for each row, found shape \(2,\)"),
        ({"alpha": np.full(ROWS, np.nan)}, "alpha"),
        ({"mean": "quadratic"}, "mean"),
        ({"mean": lambda rows: np.zeros(3)}, r"mean must return a finite number per row, \(250,\), found shape \(3,\)"),
        ({"method": "fast"}, "method"),
        ({"learn": False}, "learn=False needs a kernel"),
        ({"learn": False, "kernel": "rbf"}, "learn=False needs noise or alpha"),
    ],
)
def test_a_bad_argument_is_named(changed, message):
    with pytest.raises((ValueError, TypeError), match=message):
        GPRegressor(**changed).fit(X, Y)


@pytest.mark.filterwarnings("ignore:y does not vary")
@pytest.mark.parametrize(
    ("rows", "targets"),
    [
        (np.zeros((5, 2)), np.arange(5.0)),
        (np.zeros((5, 2)), np.ones(5)),
        (np.ones((1, 2)), np.ones(1)),
        (np.repeat(X[:3], 4, axis=0), np.arange(12.0)),
        (np.column_stack([X[:20, 0], np.full(20, 1e8)]), 1e8 + 1e-8 * Y[:20]),
        (np.float32(1e-8 * X[:20]), np.float32(1e-8 * Y[:20])),
    ],
    ids=["one place", "one value", "one row", "repeats", "constant column", "tiny and float32"],
)
def test_odd_data_give_finite_means_and_positive_deviations(rows, targets):
    mean, std = GPRegressor(random_state=0).fit(rows, targets).predict(rows, return_std=True)
    assert np.all(np.isfinite(mean))
    assert np.all(np.isfinite(std))
    assert np.all(std > 0)


@pytest.mark.parametrize("verbose", [False, True])
def test_a_search_cut_short_is_warned_of_and_shown_if_asked_for(capsys, verbose):
    X = np.linspace(0, 1, 500)[:, None]  # too many for the uncertainty of parameters to be counted
    with pytest.warns(ConvergenceWarning, match="max_iter=1 ended the search"):
        GPRegressor("rbf", restarts=0, max_iter=1, verbose=verbose, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    assert ("500 rows, " in capsys.readouterr().out) == verbose


def test_targets_whose_powers_overflow_or_underflow_are_refused():
    X = np.linspace(0, 1, 30)[:, None]
    with pytest.raises(
        ValueError,
        match=r"y must hold numbers of at most 1e\+75, in each column one of at least 1e-75 or 0 alone, found 8",
    ):
        GPRegressor().fit(X, np.sin(X[:, 0]) * 1e200)
    with pytest.raises(
        ValueError,
        match=r"y must hold numbers of at most 1e\+75, in each column one of at least 1e-75 or 0 alone, found 8",
    ):
        GPRegressor().fit(X, np.sin(X[:, 0]) * 1e-200)


def interrupt(monkeypatch, call, method="evaluate", rows=0):
    """Let Ctrl-C come at some call of a method of the evidence of more than so many rows."""
    whole, calls = getattr(ExactEvidence, method), []

    def interrupted(evidence, parameters):
        calls.append(len(evidence.inputs) > rows)
        if sum(calls) == call:
            raise KeyboardInterrupt
        return whole(evidence, parameters)

    monkeypatch.setattr(ExactEvidence, method, interrupted)
    return calls


def test_an_interrupt_keeps_a_fit_and_ends_a_cross_validation(monkeypatch):
    calls = interrupt(monkeypatch, 10)
    with pytest.warns(UserWarning, match="interrupted"):
        model = GPRegressor("rbf", random_state=0).fit(X, Y)
    assert np.all(np.isfinite(model.predict(NEW)))
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(GPRegressor("rbf", random_state=0), X, Y, cv=3)
    assert len(calls) == 10


@pytest.mark.parametrize(
    ("call", "method", "rows", "reached"),
    [(3, "evaluate", 200, 150), (1, "solution", 200, 550), (2, "evaluate", 500, 150)],
)
def test_an_interrupt_on_more_rows_keeps_what_fewer_have_found(monkeypatch, call, method, rows, reached):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 6, size=(550, 1))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=550)
    interrupt(monkeypatch, call, method, rows)
    with pytest.warns(UserWarning, match="interrupted"):
        model = GPRegressor("rbf", random_state=0).fit(x, y)
    assert model.score(x, y) > 0.95
    assert len(model._posterior.rows.inputs) == reached  # of all rows a posterior would keep a user waiting


def test_an_interrupt_before_anything_is_found_is_raised(monkeypatch):
    interrupt(monkeypatch, 1)
    model = GPRegressor("rbf", random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert not hasattr(model, "kernel_")


def test_without_noise_the_smoothest_family_is_found():
    X = np.random.default_rng(2).uniform(0, 6, (25, 1))
    y = np.sin(2 * X[:, 0])
    found, smooth = (GPRegressor(kernel, restarts=0, random_state=0).fit(X, y) for kernel in (None, "rbf"))
    assert found.log_marginal_likelihood_ > smooth.log_marginal_likelihood_ - 0.5

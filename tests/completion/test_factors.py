"""The posteriors of a side against brute force, the bound, priors, and sums over ratings."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import random as sparse_random
from sklearn.metrics import ndcg_score

from thalweg.completion import FactorSettings, Options, Ratings, complete
from thalweg.completion.factors import FactorState, Side
from thalweg.completion.posteriors import VectorLayout, VectorPosteriors, packing, predict_pairs, second_moments
from thalweg.completion.priors import FactorPrior, FeatureMap, NoiseScales, presence_bases
from thalweg.completion.rank import ndcg
from thalweg.completion.ratings import RatingBlocks, sum_ratings

ROWS, COLUMNS, RANK = 7, 6, 2
SETTINGS = FactorSettings(rank=RANK, dtype=np.float64, uneven=False, max_iter=12, tol=0.0)


def some_ratings(seed=0, count=60):
    rng = np.random.default_rng(seed)
    # Row 3 and column 2 have none, and cells occur twice.
    rows = rng.choice([0, 1, 2, 4, 5, 6], count)
    columns = rng.choice([0, 1, 3, 4, 5], count)
    return Ratings(rows, columns, rng.normal(size=count), rng.uniform(0.5, 2, count), (ROWS, COLUMNS))


def initial_sides(ratings, settings=SETTINGS):
    return FactorState.initial(ratings, np.ones((ROWS, 1)), np.ones((COLUMNS, 1)), settings)[:2]


def stepped(side, other, noise):
    return side.updated(other, noise).with_prior(learn_spread=True)


def sides():
    ratings = some_ratings()
    rows, columns = initial_sides(ratings)
    for k in range(3):
        rows = stepped(rows, columns, 1.3 + k)
        columns = stepped(columns, rows, 1.3 + k)
    return ratings, rows, columns


def unpacked(side):
    """Means and covariances of factors and bias, as plain arrays."""
    means, covariances = (np.asarray(part)[: side.count] for part in side.posteriors)
    return means[:, side.layout.free], side.layout.free_entries(covariances)


def sigma_points(mean, covariance):
    """Points over which the mean of a quadratic function is that under N(mean, covariance), exactly."""
    root = np.linalg.cholesky(covariance) * np.sqrt(len(mean))
    return np.concatenate([mean + root.T, mean - root.T])


def prediction(p, q):
    return (p[..., :RANK] * q[..., :RANK]).sum(axis=-1) + p[..., RANK] + q[..., RANK]


def test_sums_are_those_of_a_plain_loop():
    ratings, rng = some_ratings(), np.random.default_rng(1)
    moments, means, noise = rng.normal(size=(COLUMNS, 5)), rng.normal(size=(COLUMNS, 3)), rng.uniform(size=COLUMNS)
    sums = sum_ratings(RatingBlocks.of(ratings, np.float64), *map(jnp.asarray, (moments, means, noise)), 8)
    expected = [np.zeros((8, 5)), np.zeros((8, 3)), np.zeros(8)]
    for u, i, r, w in zip(*ratings[:4], strict=True):
        expected[0][u] += w * noise[i] * moments[i]
        expected[1][u] += w * noise[i] * r * means[i]
        expected[2][u] += w * noise[i] * r**2
    for part, truth in zip(sums, expected, strict=True):
        np.testing.assert_allclose(part, truth, atol=1e-12)


def test_a_row_that_spans_many_chunks_is_summed_once():
    rows = np.repeat([0, 1], [40_000, 3])
    blocks = RatingBlocks.of(Ratings(rows, np.zeros(len(rows), int), np.ones(len(rows)), None, (2, 1)), np.float64)
    assert blocks.rows.shape[0] > 2
    ones = jnp.ones((1, 1))
    np.testing.assert_allclose(sum_ratings(blocks, ones, ones, jnp.ones(1), 2).squares, [40_000, 3])


@pytest.mark.parametrize("transposed", [False, True])
def test_the_posterior_of_a_row_is_that_of_the_expected_log_joint(transposed):
    ratings, rows, columns = sides()
    side, other = (columns, rows) if transposed else (rows, columns)
    ratings = ratings.transposed if transposed else ratings
    prior, noise = side.prior, 2.1
    means, covariances = unpacked(side.updated(other, noise))
    other_means, other_covariances = unpacked(other)
    expected = prior.mean(np.ones((1, 1)))[0]

    @jax.jit
    def log_joint(w, points, values, weights):
        def of_rating(points, value, weight):
            miss = jax.vmap(lambda v: value - prediction(w, v))(points)
            return -noise * weight * jnp.mean(miss**2) / 2

        log_prior = -(w - expected) @ jnp.asarray(prior.precision) @ (w - expected) / 2
        return log_prior + jnp.sum(jax.vmap(of_rating)(points, values, weights))

    hessian, gradient = jax.jit(jax.hessian(log_joint)), jax.jit(jax.grad(log_joint))
    for row in range(side.count):
        mine = np.flatnonzero(ratings.rows == row)
        points = [sigma_points(other_means[i], other_covariances[i]) for i in ratings.columns[mine]]
        none = np.zeros((20 - len(mine), 2 * RANK + 2, RANK + 1))
        given = (
            jnp.asarray(np.concatenate([np.reshape(points, (-1, 2 * RANK + 2, RANK + 1)), none])),
            jnp.asarray(np.pad(ratings.values[mine], (0, 20 - len(mine)))),
            jnp.asarray(np.pad(ratings.weights[mine], (0, 20 - len(mine)))),
        )
        precision = -np.asarray(hessian(jnp.asarray(means[row]), *given))
        np.testing.assert_allclose(np.linalg.inv(covariances[row]), precision, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(gradient(jnp.asarray(means[row]), *given), 0, atol=1e-8)


def whole_bound(ratings, rows, columns, noise):
    """The bound by loops over ratings and rows, up to a constant."""
    (p, V), (q, W) = unpacked(rows), unpacked(columns)
    total = 0.0
    for u, i, r, w in zip(*ratings[:4], strict=True):
        a, b = sigma_points(p[u], V[u])[:, None], sigma_points(q[i], W[i])[None]
        miss = (r - prediction(a, b)) ** 2
        total += (np.log(noise) - np.log(2 * np.pi) - noise * w * np.mean(miss)) / 2
    for side, means, covariances in ((rows, p, V), (columns, q, W)):
        prior = side.prior
        for row in np.flatnonzero(side.counts):
            gap = means[row] - prior.coefficients[0]
            total += (
                np.linalg.slogdet(prior.precision)[1]
                + np.linalg.slogdet(covariances[row])[1]
                + len(gap)
                - gap @ prior.precision @ gap
                - np.sum(prior.precision * covariances[row])
            ) / 2
        # The prior of the precision is worth one row; the coefficients are N(mean, inverse ⊗ precision⁻¹).
        total += (np.linalg.slogdet(prior.precision)[1] - 1e-3 * np.trace(prior.precision)) / 2
        total -= prior.ridge[0] * prior.coefficients[0] @ prior.precision @ prior.coefficients[0] / 2
        total += (RANK + 1) * np.log(prior.ridge[0] * prior.inverse[0, 0]) / 2
    return total


def test_the_bound_is_that_of_plain_loops_up_to_a_constant():
    ratings, rows, columns = sides()
    gaps = []
    for noise in (2.0, 3.0):
        rows = stepped(rows, columns, noise)
        columns = stepped(columns, rows, noise)
        gaps.append(FactorState(rows, columns, noise).bound() - whole_bound(ratings, rows, columns, noise))
    assert abs(gaps[0] - gaps[1]) < 1e-7


def test_every_step_raises_the_bound():
    ratings, rows, columns = sides()
    noise = 2.0
    columns = stepped(columns, rows, noise)
    bounds = [whole_bound(ratings, rows, columns, noise)]
    rows = rows.updated(columns, noise)
    bounds.append(whole_bound(ratings, rows, columns, noise))
    rows = rows.with_prior(learn_spread=True)
    bounds.append(whole_bound(ratings, rows, columns, noise))
    columns = columns.updated(rows, noise)
    bounds.append(whole_bound(ratings, rows, columns, noise))
    columns = columns.with_prior(learn_spread=True)
    bounds.append(whole_bound(ratings, rows, columns, noise))
    assert np.all(np.diff(bounds) > -1e-9)
    assert bounds[-1] > bounds[0] + 1e-3


def test_sweeps_raise_the_bound_with_features_and_uneven_noise():
    ratings, rng = some_ratings(2, 200), np.random.default_rng(0)
    features = [np.column_stack([np.ones(n), rng.normal(size=(n, 2))]) for n in (ROWS, COLUMNS)]
    state = FactorState.initial(ratings, *features, FactorSettings(rank=RANK, dtype=np.float64))
    for _ in range(25):
        state = state.swept()
    # Before, the noise was taken to be even, and the spread of the priors as given.
    assert np.all(np.diff(state.bounds[7:]) > -1e-7)


def test_the_variance_of_a_prediction_is_exact():
    _, rows, columns = sides()
    on_host = (VectorPosteriors(*map(np.asarray, side.posteriors)) for side in (rows, columns))
    mean, variance = predict_pairs(*on_host, np.array([1]), np.array([3]))
    (p, V), (q, W) = unpacked(rows), unpacked(columns)
    values = [float(prediction(a, b)) for a, b in itertools.product(sigma_points(p[1], V[1]), sigma_points(q[3], W[3]))]
    np.testing.assert_allclose(mean[0], np.mean(values), atol=1e-10)
    np.testing.assert_allclose(variance[0], np.mean(np.square(values)) - np.mean(values) ** 2, atol=1e-10)


def test_a_background_is_a_rating_of_zero_in_every_cell():
    ratings = some_ratings()
    _, _, columns = sides()
    every = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
    joined = Ratings(
        np.concatenate([ratings.rows, every[0]]),
        np.concatenate([ratings.columns, every[1]]),
        np.concatenate([ratings.values, np.zeros(ROWS * COLUMNS)]),
        np.concatenate([ratings.weights, np.full(ROWS * COLUMNS, 0.7)]),
        (ROWS, COLUMNS),
    )
    settings = FactorSettings(rank=RANK, dtype=np.float64, background=0.7)
    columns = replace(columns, settings=settings)  # so that it is observed where it has no rating
    explicit, implicit = (
        Side.initial(given, np.ones((ROWS, 1)), VectorLayout(RANK, False), how).updated(columns, 1.7)
        for given, how in ((joined, SETTINGS), (ratings, settings))
    )
    for one, other in zip(unpacked(explicit), unpacked(implicit), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    np.testing.assert_allclose(explicit.misfit, implicit.misfit, atol=1e-9)


def test_coefficients_are_those_of_a_dense_gaussian():
    rng = np.random.default_rng(0)
    features, means = np.column_stack([np.ones(9), rng.normal(size=(9, 2))]), rng.normal(size=(9, 3))
    initial = FactorPrior.initial(features, np.full(3, 2.0))
    prior = initial.with_coefficients(features, means)
    # Y given V, with V = ΦY + E: the conditional mean of jointly Gaussian vectors, column by column.
    variances = np.diag(1 / initial.ridge)
    gain = variances @ features.T @ np.linalg.inv(features @ variances @ features.T + np.eye(9))
    np.testing.assert_allclose(prior.coefficients, gain @ means, rtol=1e-4, atol=1e-5)
    assert np.all(prior.covariance_factor(features) > 1)


def test_features_that_tell_nothing_are_switched_off():
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    means = features[:, [1]] * np.array([[1.0, -2.0, 0.5]]) + rng.normal(size=(300, 3))
    prior = FactorPrior.initial(features, np.ones(3))
    for _ in range(20):
        prior = prior.with_coefficients(features, means)
    assert prior.ridge[1] < 2
    assert prior.ridge[2] > 30


def test_noise_is_learned_where_it_is_uneven():
    rng = np.random.default_rng(0)
    counts = np.full(200, 40.0)
    truth = np.where(np.arange(200) < 100, 4.0, 0.5)
    misfit = rng.chisquare(40, 200) / truth
    scales = NoiseScales.prior(200, degrees=4.0)
    for _ in range(20):
        scales = scales.learned(counts, misfit)
    centred, factor = scales.centred()
    assert np.mean(centred.means) == pytest.approx(1)
    assert np.median(scales.means[:100] / truth[:100]) == pytest.approx(1, abs=0.1)
    assert scales.bound() <= centred.bound() + 1e-9
    np.testing.assert_allclose(centred.means * factor, scales.means)


def test_presence_describes_new_rows_as_it_does_old_ones():
    rated = sparse_random(40, 30, 0.2, "csr", random_state=0)
    rated.data[:] = 1
    for_rows, _ = presence_bases(rated, 3, seed=0)
    none = np.zeros((40, 0))
    feature_map = FeatureMap.of(none, for_rows, rated)
    whole = feature_map(none, rated)
    np.testing.assert_allclose(whole[:, 1:].std(axis=0), 1, atol=0.01)  # singular vectors are found by a random search
    np.testing.assert_allclose(feature_map(none[:1], rated[5]), whole[5:6])


@pytest.fixture(scope="module")
def generated():
    rng = np.random.default_rng(1)
    p, q = rng.normal(size=(150, 2)), rng.normal(size=(100, 2))
    cells = rng.permutation(150 * 100)[:6000]
    rows, columns = np.divmod(cells, 100)
    values = 10 + rng.normal(size=150)[rows] + np.sum(p[rows] * q[columns], axis=1) + 0.7 * rng.normal(size=6000)
    ratings = Ratings(rows, columns, values, None, (150, 100))
    known = np.arange(6000) < 3000
    options = Options(FactorSettings(rank=4, tol=1e-3), presence=False)
    return ratings, known, complete(ratings.part(known), np.zeros((150, 0)), np.zeros((100, 0)), options)


def test_intervals_cover_what_was_held_out(generated):
    ratings, known, result = generated
    rest = ratings.part(~known)
    low, high = result.model.interval(rest.rows, rest.columns, 0.95)
    covered = np.mean((rest.values >= low) & (rest.values <= high))
    # Five standard errors, and the little by which independent posteriors of the sides are too narrow.
    assert 0.95 - 5 * np.sqrt(0.95 * 0.05 / 3000) - 0.01 < covered < 0.95 + 5 * np.sqrt(0.95 * 0.05 / 3000)


def test_the_rank_and_the_noise_are_learned(generated):
    *_, result = generated
    strengths = result.model.strengths
    assert np.all(strengths[:2] > 0.5)
    assert np.all(strengths[2:] < 0.2)
    assert result.model.units.scale / np.sqrt(result.model.noise) == pytest.approx(0.7, abs=0.05)


def test_second_moments_are_packed_as_packing_says():
    _, rows, _ = sides()
    _, _, position, _ = packing(RANK + 2)
    means = np.asarray(rows.posteriors.means)
    moments = np.asarray(second_moments(rows.posteriors))[:, position]
    outer = means[:, :, None] * means[:, None, :]
    covariance = np.asarray(rows.posteriors.covariances)[:, position]
    np.testing.assert_allclose(moments, outer + covariance, atol=1e-12)


def test_an_interrupt_while_numbers_of_factors_race_ends_the_fit(monkeypatch):
    def interrupt(state):
        raise KeyboardInterrupt

    monkeypatch.setattr(FactorState, "swept", interrupt)
    row, column = np.divmod(np.arange(30), 6)
    ratings = Ratings(row, column, np.ones(30), None, (5, 6))
    for implicit in (False, True):
        with pytest.raises(KeyboardInterrupt):
            complete(ratings, np.zeros((5, 0)), np.zeros((6, 0)), Options(implicit=implicit))


def test_ndcg_of_rows_is_scikit_learns():
    rng = np.random.default_rng(0)
    relevant, scores = rng.integers(0, 4, size=(20, 12)).astype(float), rng.normal(size=(20, 12))
    for k in (1, 5, 30):
        each = [ndcg_score(one[None], other[None], k=k) for one, other in zip(relevant, scores, strict=True)]
        np.testing.assert_allclose(ndcg(relevant, scores, k), each)


def test_few_ratings_are_fitted_from_several_starts():
    """Of this table most starts switch every factor off; the one that does not has the higher bound."""
    rng = np.random.default_rng(4)
    truth = (rng.normal(size=(60, 2)) @ rng.normal(size=(40, 2)).T / np.sqrt(2)).ravel()
    seen, new = np.split(rng.permutation(truth.size), [300])
    values = (truth[seen] + 0.3 * rng.normal(size=300)).astype(np.float32)
    ratings = Ratings(*np.divmod(seen, 40), values, None, (60, 40))
    none = np.zeros((60, 0)), np.zeros((40, 0))
    model = complete(ratings, *none, Options(FactorSettings(max_iter=150))).model
    found, _ = model.predict(*np.divmod(new, 40))
    assert np.sqrt(np.mean((found - truth[new]) ** 2)) < 0.8 * np.std(truth)

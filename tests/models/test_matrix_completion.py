"""MatrixCompletion: what it takes, what it says, and what it refuses."""

import copy
import inspect

import numpy as np
import pandas
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import ndcg_score
from sklearn.utils.estimator_checks import check_estimator

from thalweg import MatrixCompletion, load
from thalweg.completion.factors import FactorState

PEOPLE, FILMS = 60, 40
SMALL = {"rank": 3, "presence": False, "tol": 1e-3, "random_state": 0}


def generated(seed=0, count=1500):
    """Stars from 1 to 5 of films by people, who have a feature that tells much of their taste."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(PEOPLE, 1))
    taste = np.column_stack([known[:, 0] + 0.3 * rng.normal(size=PEOPLE), rng.normal(size=PEOPLE)])
    kind = rng.normal(size=(FILMS, 2))
    person, film = np.divmod(rng.permutation(PEOPLE * FILMS)[:count], FILMS)
    stars = 3 + np.sum(taste[person] * kind[film], axis=1) * 0.7 + 0.4 * rng.normal(size=count)
    return np.column_stack([person, film]), np.clip(np.round(stars), 1, 5), known


X, STARS, KNOWN = generated()
TRAIN = np.arange(len(X)) < 1100


@pytest.fixture(scope="module")
def fitted():
    return MatrixCompletion(**SMALL).fit(X[TRAIN], STARS[TRAIN])


def rmse(model, pairs=X[~TRAIN], stars=STARS[~TRAIN]):
    return np.sqrt(np.mean((model.predict(pairs) - stars) ** 2))


def test_it_predicts_far_better_than_means(fitted):
    means = np.array([STARS[TRAIN][X[TRAIN, 1] == film].mean() for film in range(FILMS)])
    assert rmse(fitted) < 0.7 * np.sqrt(np.mean((means[X[~TRAIN, 1]] - STARS[~TRAIN]) ** 2))
    assert fitted.score(X[~TRAIN], STARS[~TRAIN]) > 0.5
    found = fitted.predict(X)
    assert found.min() >= 1
    assert found.max() <= 5


def test_intervals_cover_ratings_that_are_whole_numbers(fitted):
    low, high = fitted.predict_interval(X[~TRAIN])
    covered = np.mean((STARS[~TRAIN] >= low) & (STARS[~TRAIN] <= high))
    assert covered > 0.95 - 5 * np.sqrt(0.95 * 0.05 / 400)
    assert low.min() >= 1
    narrow = fitted.predict_interval(X[~TRAIN], 0.5)
    assert np.mean((STARS[~TRAIN] >= narrow[0]) & (STARS[~TRAIN] <= narrow[1])) < 0.75


def test_what_is_not_known_is_said(fitted):
    mean, std = fitted.predict([[999, 5], [3, 999], [999, 999], [3, 5]], return_std=True)
    assert np.all(np.isfinite(mean))
    assert std[2] > std[3]
    assert std[0] > std[3]
    assert std[2] == pytest.approx(np.std(STARS[TRAIN]), rel=0.4)


def test_ids_may_be_words_or_in_a_frame_or_a_sparse_matrix(fitted):
    some = X[~TRAIN][:20]
    expected = fitted.predict(some)
    words = np.array([f"p{number:03d}" for number in range(PEOPLE)])
    titles = np.array([f"film {number:03d}" for number in range(FILMS)])
    named = np.column_stack([words[X[:, 0]], titles[X[:, 1]]])
    model = MatrixCompletion(**SMALL).fit(named[TRAIN], STARS[TRAIN])
    np.testing.assert_allclose(model.predict(named[~TRAIN][:20]), expected, atol=1e-4)
    assert model.recommend("p003", 2)[0].dtype.kind == "U"
    mixed = [(words[u], int(i)) for u, i in X[TRAIN]]
    model = MatrixCompletion(**SMALL).fit(mixed, STARS[TRAIN])
    np.testing.assert_allclose(model.predict([(words[u], int(i)) for u, i in some]), expected, atol=1e-4)
    matrix = csr_matrix((STARS[TRAIN], tuple(X[TRAIN].T)), (PEOPLE, FILMS))
    model = MatrixCompletion(**SMALL).fit(matrix)
    np.testing.assert_allclose(model.predict(some), expected, atol=1e-4)
    frame = pandas.DataFrame({"who": words[X[:, 0]], "what": X[:, 1]})
    model = MatrixCompletion(**SMALL).fit(frame[TRAIN], STARS[TRAIN])
    np.testing.assert_allclose(model.predict(frame[~TRAIN][:20]), expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*rating:UserWarning")
def test_a_file_holds_all_of_it(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(again.recommend(3)[0], fitted.recommend(3)[0])
    words = MatrixCompletion(rank=1, presence=False, tol=1.0).fit([("a", "x"), ("b", "y")], [1.0, 2.0])
    words.save(tmp_path / "words")
    assert load(tmp_path / "words").row_ids_.tolist() == ["a", "b"]


def test_recommendations_are_the_highest_predictions_not_seen(fitted):
    ids, scores = fitted.recommend(7, 5)
    seen = set(X[TRAIN & (X[:, 0] == 7), 1])
    assert not seen & set(ids)
    free = np.array([film for film in range(FILMS) if film not in seen])
    everything = fitted.predict(np.column_stack([np.full(len(free), 7), free]))
    np.testing.assert_allclose(scores, np.sort(everything)[::-1][:5], atol=1e-5)
    assert len(fitted.recommend(7, 1000, exclude_seen=False)[0]) == FILMS
    assert len(fitted.recommend(10**7, 3)[0]) == 3
    with pytest.raises(TypeError, match="ids must be numbers as in fit, found 'nobody'"):
        fitted.recommend("nobody", 3)
    with pytest.raises(ValueError, match=r"row must be the id of one row, found \[1, 2\]"):
        fitted.recommend([1, 2], 3)


def test_alike_are_columns_whose_predictions_go_together(fitted):
    ids, alike = fitted.similar(4, 3)
    everyone = np.arange(PEOPLE)
    of = lambda film: fitted._model.scores(everyone)[:, film] - fitted.row_biases_
    assert np.corrcoef(of(4), of(ids[0]))[0, 1] > 0.8
    assert np.all(np.diff(alike) <= 0)
    with pytest.raises(ValueError, match="column must be an id that was seen, found 12345"):
        fitted.similar(12345)


def test_factors_of_new_rows_are_those_of_old_ones_with_the_same_ratings(fitted):
    mine = X[:, 0] == 9
    found = fitted.transform(np.column_stack([np.zeros(mine.sum()), X[mine, 1]]), STARS[mine])
    old = fitted.transform([9])
    assert found.shape == old.shape == (1, 3)
    spread = fitted.row_factors_.std(axis=0)
    assert np.max(np.abs(found - old) / spread) < 0.7


def test_new_ratings_are_taken_in(fitted):
    late = X[:, 0] >= 50
    new_film = X[:, 1] >= 38
    first, rest = TRAIN & ~late & ~new_film, TRAIN & (late | new_film)
    model = MatrixCompletion(**SMALL).partial_fit(X[first], STARS[first])
    test = ~TRAIN & late
    before, unsure = rmse(model, X[test], STARS[test]), model.predict(X[test], return_std=True)[1]
    model.partial_fit(X[rest], STARS[rest])
    assert rmse(model, X[test], STARS[test]) < 0.75 * before
    assert np.all(model.predict(X[test], return_std=True)[1] < unsure + 0.1)
    assert rmse(model, X[test], STARS[test]) < 1.2 * rmse(fitted, X[test], STARS[test])
    assert not set(model.recommend(55, 40)[0]) & set(X[TRAIN & (X[:, 0] == 55), 1])
    assert len(model.row_ids_) == len(model.row_factors_) == len(np.unique(X[TRAIN, 0]))


def test_half_as_many_ratings_again_are_fitted_with_all_others(fitted):
    known = np.flatnonzero(TRAIN)
    for first, same in ((len(known) // 2, True), (len(known) - 100, False)):
        model = MatrixCompletion(**SMALL).fit(X[known[:first]], STARS[known[:first]])
        model.partial_fit(X[known[first:]], STARS[known[first:]])
        assert np.allclose(model.predict(X), fitted.predict(X), atol=1e-5) == same
        assert rmse(model) < 1.1 * rmse(fitted)


def test_few_counts_without_taste_are_ranked_by_popularity():
    rng = np.random.default_rng(0)
    chances = np.exp(1.2 * rng.normal(size=FILMS))
    film = rng.permutation(np.repeat(np.arange(FILMS), np.round(300 * chances / chances.sum()).astype(int)))
    X = np.unique(np.column_stack([rng.integers(0, PEOPLE, len(film)), film]), axis=0)
    model = MatrixCompletion(**{**SMALL, "feedback": "implicit"}).fit(X)
    scores = model.predict(np.column_stack([np.zeros(FILMS, int), np.arange(FILMS)]))
    popular = np.bincount(X[:, 1], minlength=FILMS)
    assert np.corrcoef(scores, popular)[0, 1] > 0.9
    np.testing.assert_allclose(model.row_factors_, 0, atol=1e-6)


def test_ratings_of_new_columns_come_again_where_presence_counts():
    model = MatrixCompletion(**{**SMALL, "presence": True}).fit(X[TRAIN], STARS[TRAIN])
    assert rmse(model) < 0.75
    model.partial_fit([(0, 100), (70, 100), (70, 3)], [4.0, 2.0, 3.0])
    model.partial_fit([(71, 100), (71, 4), (71, 101)], [4.0, 2.0, 3.0])
    assert np.all(np.isfinite(model.predict([(71, 5), (71, 101), (3, 100)])))
    assert model.transform([(0, 100), (0, 5)], [3.0, 4.0]).shape == (1, 3)
    assert model.ranking([(71, 5)], k=3).keys() == {"ndcg", "recall"}


def test_new_ratings_may_widen_the_range(fitted):
    model = copy.deepcopy(fitted)
    model.partial_fit(np.repeat(X[:1], 30, axis=0), np.full(30, 9.0))
    assert 5.5 < model.predict(X[:1])[0] <= 9
    strict = clone(fitted).set_params(bounds=(1, 5)).fit(X[TRAIN], STARS[TRAIN])
    with pytest.raises(ValueError, match="y must be within bounds"):
        strict.partial_fit(X[:1], [9.0])
    with pytest.raises(ValueError, match="method='nuclear' after a fit with method='factors': call fit"):
        strict.set_params(method="nuclear").partial_fit(X[:1], [4.0])


def test_side_information_serves_rows_never_seen():
    cold = X[:, 0] >= 45
    train = TRAIN & ~cold
    model = MatrixCompletion(**SMALL).fit(X[train], STARS[train], row_features=(np.arange(PEOPLE), KNOWN))
    without = MatrixCompletion(**SMALL).fit(X[train], STARS[train])
    assert rmse(model, X[cold], STARS[cold]) < 0.9 * rmse(without, X[cold], STARS[cold])
    by_id = {int(person): vector for person, vector in enumerate(KNOWN)}
    again = MatrixCompletion(**SMALL).fit(X[train], STARS[train], row_features=by_id)
    np.testing.assert_allclose(again.predict(X[cold]), model.predict(X[cold]), atol=1e-5)
    late = MatrixCompletion(**SMALL).fit(X[train], STARS[train], row_features=(np.arange(45), KNOWN[:45]))
    late.partial_fit(np.zeros((0, 2), int), [], row_features=(np.arange(45, PEOPLE), KNOWN[45:]))
    np.testing.assert_allclose(late.predict(X[cold]), model.predict(X[cold]), atol=0.05)


def test_ratings_far_from_zero_are_learned_as_those_near_it():
    """Beyond 1e8 they were taken for equal ones, with a standard deviation of a tenth of them."""
    near, far = (MatrixCompletion(**SMALL).fit(X[TRAIN], STARS[TRAIN] + offset) for offset in (0.0, 1e10))
    means, deviations = near.predict(X[~TRAIN], return_std=True)
    np.testing.assert_allclose(far.predict(X[~TRAIN]) - 1e10, means, atol=0.01)
    np.testing.assert_allclose(far.predict(X[~TRAIN], return_std=True)[1], deviations, rtol=0.02)


def test_implicit_feedback_ranks_by_what_was_done():
    liked = STARS >= 4
    model = MatrixCompletion(**{**SMALL, "feedback": "implicit"}).fit(X[TRAIN & liked])
    found = model.ranking(X[~TRAIN & liked], k=5)
    popular = np.bincount(X[TRAIN & liked, 1], minlength=FILMS).astype(float)
    people = np.unique(X[~TRAIN & liked, 0])
    scores, truth = np.tile(popular, (len(people), 1)), np.zeros((len(people), FILMS))
    for row, person in enumerate(people):
        scores[row, X[TRAIN & liked & (X[:, 0] == person), 1]] = -1
        truth[row, X[~TRAIN & liked & (X[:, 0] == person), 1]] = 1
    assert found["ndcg"] > 1.1 * ndcg_score(truth, scores, k=5)
    assert 0 < found["recall"] <= 1
    with pytest.raises(ValueError, match="positive counts"):
        model.fit(X[TRAIN], np.zeros(TRAIN.sum()))
    with pytest.raises(ValueError, match="counts of at most 100,000"):
        model.fit(X[TRAIN], np.full(TRAIN.sum(), 1e9))


def test_counts_stream_in():
    liked = np.flatnonzero(STARS >= 4)
    half = len(liked) // 2
    options = {**SMALL, "feedback": "implicit"}
    both = MatrixCompletion(**options).fit(X[liked])
    model = MatrixCompletion(**options).fit(X[liked[:half]])
    every = np.column_stack(np.divmod(np.arange(PEOPLE * FILMS), FILMS))
    close = lambda: np.corrcoef(model.predict(every), both.predict(every))[0, 1]
    before = close()
    model.partial_fit(X[liked[half:]])
    assert close() > before + 0.02
    assert model._model.rated.nnz == both._model.rated.nnz
    # A new person who did what person 3 did is served as person 3 is; and so are vectors of such a person.
    films = X[liked][X[liked, 0] == 3, 1]
    as_three = np.column_stack([np.full(len(films), 10**6), films])
    model.partial_fit(as_three)
    scores = [model.predict(np.column_stack([np.full(FILMS, who), np.arange(FILMS)])) for who in (3, 10**6)]
    assert np.corrcoef(scores)[0, 1] > 0.9
    found, known = both.transform(as_three, np.ones(len(films)))[0], both.transform([3])[0]
    np.testing.assert_allclose(found, known, atol=0.2 * np.linalg.norm(known))
    # One more thing done by somebody busy says little of the rest.
    busy = np.argmax(np.bincount(X[liked, 0]))
    of_busy = every[every[:, 0] == busy]
    before = both.predict(of_busy)
    unseen = np.setdiff1d(np.arange(FILMS), X[liked][X[liked, 0] == busy, 1])[:1]
    after = copy.deepcopy(both).partial_fit([[busy, unseen[0]]]).predict(of_busy)
    assert 0 < np.linalg.norm(after - before) < 0.3 * np.linalg.norm(before)
    with pytest.raises(ValueError, match="feedback='explicit' after a fit with the other kind"):
        model.set_params(feedback="explicit").partial_fit(X[:3], STARS[:3])


def test_a_weight_that_all_ratings_have_changes_nothing(fitted):
    heavy = MatrixCompletion(**SMALL).fit(X[TRAIN], STARS[TRAIN], sample_weight=np.full(TRAIN.sum(), 7.0))
    for one, other in zip(heavy.predict(X, return_std=True), fitted.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    more = X[~TRAIN][:50], STARS[~TRAIN][:50]
    heavy.partial_fit(*more, sample_weight=np.full(50, 7.0))
    plain = copy.deepcopy(fitted).partial_fit(*more)
    np.testing.assert_allclose(heavy.predict(X), plain.predict(X), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*rating:UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_intervals_of_few_ratings_are_wide():
    rng, covered = np.random.default_rng(0), []
    cells = np.column_stack(np.divmod(np.arange(9), 3))
    short = {**SMALL, "rank": 1, "max_iter": 8}
    for _ in range(5):
        stars, new = 3 + rng.normal(size=6), 3 + rng.normal(size=9)
        low, high = MatrixCompletion(**short).fit(cells[rng.integers(0, 9, 6)], stars).predict_interval(cells)
        covered.append(np.mean((new >= low) & (new <= high)))
    assert np.mean(covered) > 0.9
    low, high = MatrixCompletion(**short).fit([[1, 1]], [4.0]).predict_interval([[1, 1], [2, 2]])
    assert np.all(high - low > 8)
    low, high = MatrixCompletion(**short, bounds=(1, 5)).fit([[1, 1]], [4.0]).predict_interval([[1, 1]])
    assert (low[0], high[0]) == (1, 5)


def test_a_warm_start_goes_on(fitted):
    model = copy.deepcopy(fitted).set_params(warm_start=True)
    cold, bound = model.n_iter_, model.elbo_
    model.fit(X[TRAIN], STARS[TRAIN])
    assert model.n_iter_ < cold
    assert model.elbo_ > bound - 0.01 * TRAIN.sum()


def test_a_validation_set_ends_the_fit():
    with pytest.warns(ConvergenceWarning, match="max_iter=3 sweeps"):
        MatrixCompletion(**{**SMALL, "max_iter": 3}).fit(X[TRAIN], STARS[TRAIN])
    model = MatrixCompletion(**{**SMALL, "validation_fraction": 0.1, "tol": 0.0}).fit(X[TRAIN], STARS[TRAIN])
    errors = model.history_["held_out_rmse"]
    assert len(errors) == model.n_iter_ == len(model.history_["bound"]) < 50
    assert rmse(model) < 0.6


def test_a_validation_set_does_not_end_the_fit_before_all_is_learned():
    rng = np.random.default_rng(0)
    taste, kind = rng.normal(size=(60, 2)), 0.7 * rng.normal(size=(40, 2))
    bias, lean = 0.5 * rng.normal(size=60), 0.5 * rng.normal(size=40)
    person, film = np.divmod(rng.permutation(2400)[:800], 40)
    stars = bias[person] + lean[film] + np.sum(taste[person] * kind[film], axis=1) + 0.5 * rng.normal(size=800)
    model = MatrixCompletion(10, presence=False, validation_fraction=0.2, random_state=0)
    model.fit(np.column_stack([person, film]), stars)
    assert 0.4 < model.noise_ < 0.6


def test_what_was_learned_is_kept_when_interrupted(monkeypatch):
    sweep = FactorState.swept

    def interrupted(state):
        if len(state.bounds) == 4:
            raise KeyboardInterrupt
        return sweep(state)

    monkeypatch.setattr(FactorState, "swept", interrupted)
    with pytest.warns(UserWarning, match="interrupted .*: the result is what was reached so far"):
        model = MatrixCompletion(**{**SMALL, "tol": 0.0}).fit(X[TRAIN], STARS[TRAIN])
    assert model.n_iter_ == 4
    assert np.all(np.isfinite(model.predict(X)))


def test_a_fit_that_fails_changes_nothing(fitted):
    model = copy.deepcopy(fitted)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match="finite numbers, found nan at index 1"):
        model.fit(X[:3], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(model.predict(X[:5]), before)


@pytest.mark.parametrize(
    ("pairs", "stars", "match"),
    [
        (X[:3], None, "requires y to be passed"),
        (X[:3], [1.0, 2.0], r"y must have shape \(3,\)"),
        (X[:3], ["a", "b", "c"], "y must hold numbers"),
        (X[:3], [1.0, np.inf, 2.0], "y must hold finite numbers, found inf at index 1"),
        (np.ones((3, 3)), [1.0, 2.0, 3.0], r"X must have shape \(n, 2\)"),
        (np.array([[1.0, np.nan]]), [1.0], "X must not be missing, found nan"),
        (np.zeros((0, 2)), [], "at least one rating"),
        (csr_matrix(np.eye(3)), [1.0, 2.0, 3.0], "y must be None where X is sparse"),
    ],
)
def test_bad_ratings_are_refused_in_words(pairs, stars, match):
    with pytest.raises((ValueError, TypeError), match=match):
        MatrixCompletion(**SMALL).fit(pairs, stars)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"bounds": (5, 1)}, r"bounds must be a pair \(least, largest\)"),
        ({"bounds": (2, 4)}, "y must be within bounds"),
        ({"rank": 0}, "rank"),
        ({"method": "magic"}, "method"),
    ],
)
def test_bad_parameters_are_refused_in_words(parameters, match):
    with pytest.raises(ValueError, match=match):
        MatrixCompletion(**{**SMALL, **parameters}).fit(X, STARS)


def test_bad_side_information_is_refused_in_words():
    model = MatrixCompletion(**SMALL)
    for features, match in (
        ((np.arange(3), KNOWN[:2]), "a vector for each of 3 ids"),
        ((np.array([1, 1]), KNOWN[:2]), "an id twice"),
        ({1: [np.nan]}, "finite numbers"),
        ({1: ["red"]}, "encode words first"),
    ):
        with pytest.raises(ValueError, match=f"row_features must .*{match}|row_features must have one .*{match}"):
            model.fit(X, STARS, row_features=features)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*rating:UserWarning")
@pytest.mark.parametrize(
    ("pairs", "stars"),
    [
        (np.array([[5, 7]]), np.array([4.0])),
        (X[:50], np.full(50, 3.0)),
        (np.repeat(X[:10], 3, axis=0), np.repeat(STARS[:10], 3)),
        (np.column_stack([np.arange(30), np.zeros(30, int)]), np.arange(30) % 5.0),
    ],
    ids=["one rating", "constant", "duplicates", "one column"],
)
def test_poor_data_give_sensible_answers(pairs, stars):
    model = MatrixCompletion(**SMALL).fit(pairs, stars)
    mean, std = model.predict(np.vstack([pairs[:5], [[10**6, 10**6]]]), return_std=True)
    assert np.all(np.isfinite(mean) & np.isfinite(std) & (std >= 0))
    assert np.all((mean >= stars.min() - 1e-6) & (mean <= stars.max() + 1e-6))


def test_a_cell_rated_often_counts_often(fitted):
    low = X[TRAIN][np.argmin(STARS[TRAIN])]
    pairs, stars = np.vstack([X[TRAIN], np.tile(low, (20, 1))]), np.concatenate([STARS[TRAIN], np.full(20, 5.0)])
    assert MatrixCompletion(**SMALL).fit(pairs, stars).predict([low])[0] > fitted.predict([low])[0] + 1


def test_it_says_when_it_is_not_fitted():
    with pytest.raises(NotFittedError):
        MatrixCompletion().predict([[1, 2]])


def test_no_more_than_a_dozen_parameters():
    assert len(inspect.signature(MatrixCompletion).parameters) <= 12


def test_rank_metrics_are_scikit_learns(fitted):
    held = X[~TRAIN]
    scores = fitted._model.scores(np.arange(PEOPLE))
    scores[X[TRAIN, 0], X[TRAIN, 1]] = -1e30
    truth = np.zeros((PEOPLE, FILMS))
    truth[held[:, 0], held[:, 1]] = STARS[~TRAIN]
    people = np.unique(held[:, 0])
    expected = ndcg_score(truth[people], scores[people], k=10)
    assert fitted.ranking(held, STARS[~TRAIN], k=10)["ndcg"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="found none"):
        fitted.ranking([[10**6, 1]])
    with pytest.raises(ValueError, match="y must hold gains of at least 0, found -1"):
        fitted.ranking(held[:2], [1.0, -1.0])


NO_IDS = {
    "check_all_zero_sample_weights_error": "the error says 'not all 0' where a word of theirs is looked for",
    "check_sample_weight_equivalence_on_sparse_data": "a sparse X is the ratings, and then there is no y",
    "check_estimator_sparse_tag": "a sparse X is the ratings, and then there is no y",
    "check_estimators_nan_inf": "expects words about features; NaN among ids is refused in ours",
    "check_estimators_empty_data_messages": "expects words about features",
    "check_positive_only_tag_during_fit": "X has more than two columns",
    "check_fit2d_1sample": "one rating is enough",
    "check_fit2d_1feature": "expects words about features",
    "check_fit_idempotent": "transform without ratings takes ids of rows, not pairs",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_hold_where_they_can_apply():
    """They pass features, of which there are two here, ids: other numbers of columns are refused."""
    found = check_estimator(MatrixCompletion(rank=2, max_iter=3), on_fail=None, on_skip=None)
    failed = {one["check_name"]: str(one["exception"]) for one in found if one["status"] == "failed"}
    odd = {name: text for name, text in failed.items() if name not in NO_IDS and "X must have shape (n, 2)" not in text}
    assert not odd
    assert sum(one["status"] == "passed" for one in found) >= 20


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_movielens_is_predicted_well_by_ten_factors():
    from thalweg import data

    found = data.load("ml1m")
    pairs, stars = np.column_stack([found["user"], found["movie"]]), found["rating"].astype(float)
    held = found["is_test"].astype(bool)
    model = MatrixCompletion(10, max_iter=6, random_state=0).fit(pairs[~held], stars[~held])
    low, high = model.predict_interval(pairs[held])
    assert rmse(model, pairs[held], stars[held]) < 0.842
    assert 0.93 < np.mean((stars[held] >= low) & (stars[held] <= high)) < 0.97


def test_many_factors_and_few_ratings_do_not_end_in_the_mean():
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(60, 2)), rng.normal(size=(40, 2))
    row, column = np.divmod(rng.permutation(2400), 40)
    y = 3 + np.sum(p[row] * q[column], axis=1) + 0.3 * rng.normal(size=2400)
    pairs = np.column_stack([row, column])
    model = MatrixCompletion(10, presence=False, random_state=0).fit(pairs[:600], y[:600])
    assert model.score(pairs[600:], y[600:]) > 0.85
    assert np.sum(model.strengths_ > 0.05) == 2


def test_hardly_any_ratings_copies_and_features_of_other_ids_are_told():
    with pytest.warns(UserWarning, match=r"2 rating\(s\) hardly tell how noisy ratings are"):
        MatrixCompletion(**{**SMALL, "rank": 1}).fit(X[:2], STARS[:2])
    with pytest.warns(UserWarning, match="300 of 600 ratings are copies"):
        MatrixCompletion(**SMALL).fit(np.vstack([X[:300]] * 2), np.concatenate([STARS[:300]] * 2))
    with pytest.raises(ValueError, match="row_features as an array has a line for each of the ids 0 to 2"):
        MatrixCompletion(**SMALL).fit(X, STARS, row_features=np.ones((3, 1)))
    with pytest.raises(ValueError, match="row_features must have vectors of one length"):
        MatrixCompletion(**SMALL).fit(X, STARS, row_features={0: [1.0, 2.0], 1: [1.0]})


def test_ratings_that_come_again_are_told():
    draws = np.random.default_rng(0)
    cells, stars = np.array(divmod(draws.permutation(144)[:80], 12)).T, draws.integers(1, 6, size=80).astype(float)
    model = MatrixCompletion(**SMALL).fit(cells, stars)
    with pytest.warns(UserWarning, match="30 of 30 new ratings are of cells that had the same value before"):
        model.partial_fit(cells[:30], stars[:30])


def test_values_that_are_no_scale_are_not_clipped():
    rng = np.random.default_rng(0)
    truth = 3 + rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    cells = np.array(divmod(rng.permutation(2400), 40)).T
    cells = cells[np.argsort(truth[*cells.T])]  # those not seen are the largest
    seen = np.setdiff1d(np.arange(2390), np.arange(0, 2390, 3))
    model = MatrixCompletion(**SMALL).fit(cells[seen], truth[*cells[seen].T])
    low, high = model.predict_interval(cells[-10:])
    assert np.all(high > low)
    assert np.max(model.predict(cells[-10:])) > np.max(truth[*cells[seen].T])


@pytest.mark.parametrize(("shape", "factors"), [((57, 3), 3), ((20, 20), 10)])
def test_no_more_factors_than_rows_or_columns_or_ratings_of_each(shape, factors):
    cells = np.argwhere(np.ones(shape))
    settings = {"presence": False, "max_iter": 2, "tol": 0, "random_state": 0}
    model = MatrixCompletion(500, **settings).fit(cells, np.sin(np.arange(len(cells))))
    assert len(model.strengths_) == factors
    again = MatrixCompletion(500, warm_start=True, **settings).fit(cells[::2], np.sin(np.arange(len(cells)))[::2])
    again.fit(cells, np.sin(np.arange(len(cells))))
    assert len(again.strengths_) == factors


def test_columns_of_a_frame_keep_their_order():
    frame = pandas.DataFrame(X, columns=["person", "film"])
    model = MatrixCompletion(**SMALL).fit(frame, STARS)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["film", "person"]])


def test_what_was_done_again_and_words_with_an_array_of_features():
    MatrixCompletion(**SMALL, feedback="implicit").fit(np.vstack([X[:300]] * 2))  # a warning would be an error
    with pytest.raises(ValueError, match="row_features as an array has a line for each of the ids 0 to 59"):
        MatrixCompletion(**SMALL).fit(X.astype(str), STARS, row_features=np.ones((PEOPLE, 1)))


def test_columns_without_factors_are_similar_to_none():
    rng = np.random.default_rng(0)
    pairs = np.column_stack([rng.integers(0, 30, 300), rng.integers(0, 20, 300)])
    model = MatrixCompletion(6, presence=False, tol=0.01, random_state=0).fit(pairs, rng.normal(size=300))
    columns, correlations = model.similar(7, 3)
    assert len(columns) == 3
    np.testing.assert_array_equal(correlations, 0)

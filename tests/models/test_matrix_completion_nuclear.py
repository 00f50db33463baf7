"""MatrixCompletion(method="nuclear"): what it predicts, what it says of ids never seen, and what it refuses."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from thalweg import MatrixCompletion, load

PEOPLE, FILMS = 60, 40


def generated(count=1500):
    rng = np.random.default_rng(0)
    taste, kind = rng.normal(size=(PEOPLE, 2)), rng.normal(size=(FILMS, 2))
    person, film = np.divmod(rng.permutation(PEOPLE * FILMS)[:count], FILMS)
    stars = 3 + 0.7 * np.sum(taste[person] * kind[film], axis=1) + 0.4 * rng.normal(size=count)
    return np.column_stack([person, film]), np.clip(np.round(stars), 1, 5)


X, STARS = generated()
TRAIN = np.arange(len(X)) < 1100


@pytest.fixture(scope="module")
def fitted():
    return MatrixCompletion(method="nuclear", random_state=0).fit(X[TRAIN], STARS[TRAIN])


def test_it_predicts_better_than_means_and_within_the_range(fitted):
    means = np.array([STARS[TRAIN][X[TRAIN, 1] == film].mean() for film in range(FILMS)])
    error = np.sqrt(np.mean((fitted.predict(X[~TRAIN]) - STARS[~TRAIN]) ** 2))
    assert error < 0.9 * np.sqrt(np.mean((means[X[~TRAIN, 1]] - STARS[~TRAIN]) ** 2))
    found = fitted.predict(np.argwhere(np.ones((PEOPLE, FILMS))))
    assert found.min() >= 1
    assert found.max() <= 5
    assert np.all(np.diff(fitted.history_["objective"]) < 0)
    assert fitted.n_iter_ == len(fitted.history_["objective"])


def test_ids_never_seen_have_the_level_of_the_other(fitted):
    loved = int(np.argmax([STARS[TRAIN][X[TRAIN, 1] == film].mean() for film in range(FILMS)]))
    found = fitted.predict([[999, loved], [999, 999]])
    assert found[0] > found[1] == pytest.approx(STARS[TRAIN].mean())
    assert fitted.recommend(999, 1)[0] == loved


def test_it_recommends_and_compares_and_ranks(fitted):
    ids, scores = fitted.recommend(7, 5)
    assert not set(ids) & set(X[TRAIN][X[TRAIN, 0] == 7, 1])
    np.testing.assert_allclose(scores, fitted.predict([[7, film] for film in ids]), rtol=1e-6)
    alike, correlation = fitted.similar(4, 3)
    assert 4 not in alike
    assert np.all(np.diff(correlation) <= 0)
    assert 0 < fitted.ranking(X[~TRAIN], STARS[~TRAIN])["ndcg"] <= 1


def test_what_needs_a_posterior_is_refused(fitted):
    for call in (
        lambda: fitted.predict(X, return_std=True),
        lambda: fitted.predict_interval(X),
        lambda: fitted.transform([3]),
        lambda: fitted.partial_fit(X[:2], STARS[:2]),
    ):
        with pytest.raises(ValueError, match="use method='factors'"):
            call()
    for wrong in ({"row_features": {0: [1.0]}}, {}):
        model = MatrixCompletion(method="nuclear", feedback="explicit" if wrong else "implicit")
        with pytest.raises(ValueError, match="explicit ratings without side information"):
            model.fit(X[TRAIN], STARS[TRAIN], **wrong)


def test_a_file_keeps_it(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(X), fitted.predict(X))


def test_a_warm_start_has_nothing_left_to_do_and_a_short_fit_says_so():
    with pytest.warns(ConvergenceWarning, match="max_iter=1 "):
        model = MatrixCompletion(method="nuclear", max_iter=1, warm_start=True, random_state=0).fit(
            X[TRAIN], STARS[TRAIN]
        )
    first = model.history_["objective"][0]
    model.set_params(max_iter=50).fit(X[TRAIN], STARS[TRAIN])
    assert model.history_["objective"][0] < first
    with pytest.warns(ConvergenceWarning, match="max_iter=1 "):
        model.set_params(max_iter=1).fit(X[TRAIN] + 1, STARS[TRAIN])
    assert model.history_["objective"][0] == pytest.approx(first, rel=1e-4)

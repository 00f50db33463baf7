"""The estimator: scikit-learn's contract, odd input, and what users do with it."""

import numpy as np
import pandas
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from thalweg import CorrelatedTopicModel, files, load
from thalweg.errors import FileFormatError
from thalweg.runs import Run, raising_interrupts

TOPICS, WORDS, DOCUMENTS = 3, 60, 240
SMALL = (40, 6)
"""Documents and words of tables that share a compiled program."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X holds fractions:UserWarning")
@parametrize_with_checks([CorrelatedTopicModel(2, max_iter=20, tol=0.1, draws=5)])
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def drawn(seed, documents=DOCUMENTS, effect=0.0, length=80):
    """Documents of a correlated topic model, its topics, and a covariate that moves the first two."""
    topics = np.random.default_rng(7).dirichlet(np.full(WORDS, 0.1), size=TOPICS)
    rng = np.random.default_rng(seed)
    covariate = rng.normal(size=documents)
    root = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])
    z = rng.normal(size=(documents, TOPICS)) @ root.T + covariate[:, None] * effect * np.array([1.0, -1.0, 0.0])
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(length, p) for p in shares @ topics])
    return csr_matrix(counts), topics, shares, covariate


def matched(found, true):
    """For each true topic the found one that is like it, and their cosines."""
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    likeness = unit(true) @ unit(found).T
    rows, columns = linear_sum_assignment(-likeness)
    return columns, likeness[rows, columns]


@pytest.fixture(scope="module")
def corpus():
    return drawn(0)


def fit(X, seed=0, draws=60):
    """A model by the fewest passes that can show convergence."""
    return CorrelatedTopicModel(TOPICS, max_iter=9, tol=0.01, draws=draws, random_state=seed).fit(X)


@pytest.fixture(scope="module")
def fitted(corpus):
    return fit(corpus[0])


def test_topics_and_proportions_are_found_again(corpus, fitted):
    X, topics, shares, _ = corpus
    order, cosines = matched(fitted.components_, topics)
    assert cosines.min() > 0.98
    np.testing.assert_allclose(fitted.components_.sum(axis=1), 1)
    found = fitted.transform(X)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert np.sqrt(np.mean((found[:, order] - shares) ** 2)) < 0.08


def test_topics_that_go_together_are_correlated(fitted, corpus):
    order, _ = matched(fitted.components_, corpus[1])
    between = lambda i, j: fitted.covariance_[order[i], order[j]]
    spread = lambda i, j: between(i, i) + between(j, j) - 2 * between(i, j)
    # Of z_i − z_j, which is what words can tell: 0.4 for the pair drawn together, 2 for others.
    assert spread(0, 1) < 0.5 * min(spread(0, 2), spread(1, 2))


def test_another_seed_finds_the_same_topics(corpus, fitted):
    again = fit(corpus[0], seed=1)
    assert matched(again.components_, fitted.components_)[1].min() > 0.99  # sixty draws leave some noise
    np.testing.assert_array_equal(fit(corpus[0]).components_, fitted.components_)


def test_dense_and_sparse_input_are_the_same(corpus, fitted):
    np.testing.assert_array_equal(fitted.transform(corpus[0].toarray()), fitted.transform(corpus[0]))


def test_the_score_is_a_bound_that_prefers_its_own_words(corpus, fitted):
    X, topics, shares, _ = corpus
    shuffled = X[:, np.random.default_rng(0).permutation(WORDS)]
    assert fitted.score(X) > fitted.score(shuffled) + 0.5
    assert fitted.perplexity(X) == pytest.approx(np.exp(-fitted.score(X)))
    assert fitted.score(X) < np.sum(X.toarray() * np.log(shares @ topics)) / X.sum() + 0.1


def test_posteriors_are_gaussians_that_get_narrower_with_words(corpus, fitted):
    once, much = fitted.posterior(corpus[0][:20]), fitted.posterior(9 * corpus[0][:20])
    volume = lambda covariance: np.linalg.slogdet(covariance)[1]
    assert np.all(np.linalg.eigvalsh(once[1]) > 0)
    assert np.all(volume(much[1]) < volume(once[1]))


def test_a_saved_model_transforms_and_goes_on_as_before(tmp_path, corpus, fitted):
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(corpus[0]), fitted.transform(corpus[0]))
    again.partial_fit(corpus[0])
    assert again.n_iter_ == fitted._state.batches + 1


def test_proportions_of_short_documents_are_the_means_of_their_posteriors(corpus, fitted):
    """By importance sampling."""
    X = corpus[0].toarray()
    X[:13] = np.eye(13, WORDS, k=-1)  # no word in the first, and another one in each of the others
    z = np.random.default_rng(0).multivariate_normal(fitted.mean_, fitted.covariance_, size=100_000)
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    weights = np.exp(np.log(shares @ fitted.components_) @ X[:13].T)
    np.testing.assert_allclose(fitted.transform(X)[:13], (weights / weights.sum(axis=0)).T @ shares, atol=0.015)


def test_a_stream_of_few_documents_begins_again_when_it_has_more(corpus, tmp_path):
    stream = CorrelatedTopicModel(TOPICS, random_state=0)
    for first in range(0, DOCUMENTS - 60, 60):
        stream.partial_fit(corpus[0][first : first + 60])
    before = matched(stream.components_, corpus[1])[1].mean()
    stream.save(tmp_path / "model")
    stream = load(tmp_path / "model").partial_fit(corpus[0][DOCUMENTS - 60 :])
    assert stream._state.first.started_from == DOCUMENTS
    assert matched(stream.components_, corpus[1])[1].mean() > before
    assert matched(stream.components_, corpus[1])[1].min() > 0.97
    assert stream.n_iter_ == 4


def test_covariates_change_prevalence():
    X, topics, _, covariate = drawn(3, effect=0.7)
    model = CorrelatedTopicModel(TOPICS, max_iter=9, tol=0.01, draws=20, random_state=0).fit(
        X, covariates=10 * covariate
    )
    order, _ = matched(model.components_, topics)
    effects = model.effects()
    np.testing.assert_allclose(effects.means[order], [0.07, -0.07, 0.0], atol=5 * effects.deviations.max())
    assert effects.names[0] == "topic 0: x0"
    assert abs(effects.means.sum()) < 1e-9
    high, low = (model.transform(X, covariates=np.full(DOCUMENTS, value)) for value in (30.0, -30.0))
    assert np.all(high[:, order[0]] > low[:, order[0]])


@pytest.fixture(scope="module")
def stream_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "model"
    table = csr_matrix(np.kron(np.eye(2), np.ones((20, 3))))
    CorrelatedTopicModel(2, random_state=0).partial_fit(table).save(path)
    return path


@pytest.mark.parametrize("change", ["a word", "a row", "a half", "a count"])
def test_a_changed_file_of_a_stream_is_refused(stream_file, tmp_path, change):
    """Its first documents are stored in the file; an index beyond the words would be read from elsewhere."""
    tree, metadata, kind = files.read(stream_file)
    (name, state), *_ = ((n, part) for n, part in tree["fitted"].items() if getattr(part, "first", None) is not None)
    first = state.first
    first = {
        "a word": first._replace(indices=first.indices + 1),
        "a row": first._replace(indptr=first.indptr[:-1]),
        "a half": first._replace(indices=first.indices + 0.5),
        "a count": first._replace(data=first.data[:-1]),
    }[change]
    tree["fitted"][name] = state._replace(first=first)
    files.save(tmp_path / "changed", tree, metadata, kind=kind)
    with pytest.raises(FileFormatError, match="changed"):
        load(tmp_path / "changed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:draws of effects")  # of their deviations, which are not looked at here
def test_errors_shrink_with_documents():
    """Of topics, spreads of z_i − z_j, and effects: as one over the root, a quarter with sixteen times as many."""
    spreads = lambda v: np.array([v[i, i] + v[j, j] - 2 * v[i, j] for i, j in ((0, 1), (0, 2), (1, 2))])
    errors = np.zeros((2, 3))
    for size, documents in enumerate((150, 2400)):
        for seed in range(4):
            X, topics, _, covariate = drawn(seed, documents, effect=0.7)
            model = CorrelatedTopicModel(TOPICS, random_state=0).fit(X, covariates=covariate)
            order, _ = matched(model.components_, topics)
            errors[size] += (
                np.abs(model.components_[order] - topics).sum(axis=1).mean(),
                np.abs(np.log(spreads(model.covariance_[np.ix_(order, order)]) / [0.4, 2.0, 2.0])).mean(),
                np.abs(model.effects().means[order] - [0.7, -0.7, 0.0]).mean(),
            )
    assert np.all(errors[1] < errors[0] / 2)


def test_words_become_topics_in_a_pipeline():
    texts = ["river water bank water", "stock bank market", "water river", "market stock price"] * 10
    pipeline = make_pipeline(CountVectorizer(), CorrelatedTopicModel(2, draws=0, random_state=0))
    found = pipeline.fit_transform(texts)
    assert found[0].argmax() == found[2].argmax() != found[1].argmax() == found[3].argmax()
    assert pipeline.transform(["unheard words only"] * len(texts)).shape == (len(texts), 2)
    assert list(pipeline.get_feature_names_out()) == ["correlatedtopicmodel0", "correlatedtopicmodel1"]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((5, 4)), "X must have words"),
        (np.array([[1.0, -1.0]]), "Negative values"),
        (np.array([[1.0, np.nan]]), "NaN"),
        (np.zeros((0, 4)), "0 sample"),
        (np.zeros((3, 0)), "0 feature"),
        (csr_matrix((3, 4)), "X must have words"),
    ],
)
def test_tables_that_say_nothing_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        CorrelatedTopicModel(2).fit(X)


def test_fractions_are_warned_of():
    with pytest.warns(UserWarning, match="fractions"), pytest.warns(ConvergenceWarning, match="max_iter"):
        CorrelatedTopicModel(2, max_iter=1, draws=0).fit(np.random.default_rng(0).uniform(0.5, 2, size=SMALL))


@pytest.mark.parametrize(
    ("topics", "documents", "words"),
    [
        (5, 3, 4),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 6, 5), (9, 6, 4), (3, 1, 6), (2, 5, 1))),
    ],
)
def test_any_number_of_topics_documents_and_words_will_do(topics, documents, words):
    X = 1 + np.random.default_rng(0).poisson(2.0, size=(documents, words))
    with pytest.warns(ConvergenceWarning):
        model = CorrelatedTopicModel(topics, max_iter=2, draws=5, random_state=0).fit(X)
    assert model.components_.shape == (topics, words)
    assert np.all(np.isfinite(model.transform(X)))


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (np.ones(6), "'x0' constant"),
        (np.arange(5.0), "a row for each of 6 documents"),
        (np.array([0, 1, 2, np.inf, 3, 4]), "finite"),
    ],
)
def test_covariates_that_make_no_sense_are_refused(covariates, message):
    with pytest.raises(ValueError, match=message):
        CorrelatedTopicModel(2).fit(np.ones((6, 4)), covariates=covariates)


def test_dates_as_covariates_are_refused():
    """Their numbers are counts of nanoseconds, or of another unit at the next call."""
    days = np.arange("2026-01-01", "2026-01-07", dtype="datetime64[D]")
    for given in (days, pandas.DataFrame({"day": days})):
        with pytest.raises(TypeError, match="covariates must hold numbers, found datetime64"):
            CorrelatedTopicModel(2).fit(np.ones((6, 4)), covariates=given)


def test_a_stream_goes_on_with_the_topics_and_covariates_that_it_began_with():
    X = np.kron(np.eye(2), np.ones((20, 3)))
    covariate = np.arange(40.0)
    model = CorrelatedTopicModel(2, random_state=0).partial_fit(X, covariates=pandas.Series(covariate, name="age"))
    before = model.components_.copy()
    with pytest.raises(ValueError, match=r"covariates must be given as before, found None instead of \['age'\]"):
        model.partial_fit(X)
    with pytest.raises(ValueError, match="n_components must stay 2"):
        model.set_params(n_components=3).partial_fit(X, covariates=covariate)
    np.testing.assert_array_equal(model.components_, before)


@pytest.mark.parametrize("share", [1.0, 1e-3])
@pytest.mark.filterwarnings("ignore:X holds fractions:UserWarning")
def test_documents_of_one_word_or_less_have_topics(share):
    """No two words meet in them, and there is nothing that anchors could be found by."""
    documents, words = SMALL
    X = share * np.eye(words)[np.random.default_rng(0).integers(0, words, documents)]
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = CorrelatedTopicModel(2, max_iter=2, draws=0, random_state=0).fit(X)
    assert np.all(np.isfinite(model.components_))
    assert np.all(np.isfinite(model.transform(X)))


@pytest.fixture
def interrupt_after(monkeypatch):
    """A function that makes Ctrl-C come after so many results of a fit."""

    def set_up(results):
        keep, kept = Run.keep, []

        def keep_then_interrupt(run, state, **record):
            keep(run, state, **record)
            kept.append(state)
            if len(kept) == results:
                raise KeyboardInterrupt

        monkeypatch.setattr(Run, "keep", keep_then_interrupt)

    return set_up


@pytest.mark.parametrize("results", [4, 22])
def test_a_fit_that_is_interrupted_keeps_its_topics(corpus, interrupt_after, results):
    """While starts are raced, and in the passes after that."""
    interrupt_after(results)
    with pytest.warns(UserWarning, match="interrupted") as caught:
        model = CorrelatedTopicModel(TOPICS, random_state=0).fit(corpus[0])
    assert len(caught) == 1
    assert model.components_.shape == (TOPICS, WORDS)
    assert 0 < model._state.batches <= results
    with pytest.raises(ValueError, match="effects"):
        model.effects()


def test_an_interrupt_of_many_fits_leaves_a_model_as_it_was(corpus, interrupt_after):
    interrupt_after(4)
    model = CorrelatedTopicModel(TOPICS, random_state=0)
    with raising_interrupts(), pytest.raises(KeyboardInterrupt):
        model.fit(corpus[0])
    assert not hasattr(model, "components_")


def test_effects_need_covariates(fitted):
    with pytest.raises(ValueError, match="covariates"):
        fitted.effects()


def test_equal_documents_have_equal_proportions_wherever_they_stand(fitted, corpus):
    X = corpus[0].toarray()
    X[::60], X[5:8] = X[0], 0
    proportions = fitted.transform(X)
    for alike in (proportions[::60], proportions[5:8]):
        np.testing.assert_allclose(alike, alike[:1].repeat(len(alike), axis=0), atol=1e-6)


def test_texts_books_of_a_million_words_and_fractions():
    rng = np.random.default_rng(0)
    X = rng.poisson(1.0, (40, 20)) + 1
    with pytest.raises(ValueError, match="found texts: make one with CountVectorizer"):
        CorrelatedTopicModel(2).fit(["river water", "market"])
    with pytest.raises(ValueError, match="at most 1e\\+06 words a document"):
        CorrelatedTopicModel(2).fit(X * 10**6)


@pytest.mark.slow
def test_shares_of_words_of_many_documents_are_learned_from_with_a_warning():
    X = np.random.default_rng(0).poisson(1.0, (200, 20)) + 1.0
    with pytest.warns(UserWarning, match="X holds fractions"):
        CorrelatedTopicModel(2).fit(X / X.sum(axis=1, keepdims=True))

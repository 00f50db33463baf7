"""The reading tools on a fitted model: the same as the functions on its arrays, and what is wrong is named."""

import numpy as np
import pandas as pd
import pytest

from thalweg import CorrelatedTopicModel, topics

WORDS = [f"{kind}{number}" for kind in ("sea", "law") for number in range(3)]


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=40)
    X = rng.poisson(np.where(kind[:, None] == np.arange(6) // 3, 6.0, 0.4))
    return CorrelatedTopicModel(2, draws=0, random_state=0).fit(X), X, kind


def test_methods_are_the_functions(fitted):
    model, X, kind = fitted
    for words in model.top_words(WORDS, 3, by="frex"):
        assert len({word[:3] for word in words}) == 1
    first = topics.top_indices(model.components_, 2)
    np.testing.assert_array_equal(model.coherence(X, 2, "u_mass"), topics.u_mass(first, X))
    np.testing.assert_array_equal(model.coherence(X, 2), topics.npmi(first, X))
    assert len(set(kind[model.top_documents(X, 0, 10)])) == 1
    # Two shares that sum to one can only go against one another.
    np.testing.assert_allclose(model.topic_correlations()[0, 1], -1)
    found = model.completion(X)
    assert found.score > -np.log(6) + 5 * found.standard_error


def test_a_page_names_words_and_documents(fitted):
    model, X, _ = fitted
    page = model.browser(X, WORDS, documents=[f"<report {row}>" for row in range(len(X))], title="Sea & law")
    assert "Sea &amp; law" in page
    assert "sea2" in page
    assert "&lt;report" in page
    assert "<report" not in page
    assert model.top_words(n=3)[0][0].startswith("x")
    assert model.browser(X).count("<svg") >= 2


def test_what_is_wrong_is_named(fitted):
    model, X, _ = fitted
    with pytest.raises(ValueError, match=r"measure must be one of 'npmi', 'u_mass', found 'c_v'"):
        model.coherence(X, measure="c_v")
    with pytest.raises(ValueError, match="vocabulary"):
        model.top_words(WORDS[:3])


def test_a_vectorizers_vocabulary_is_read_by_columns_not_in_its_own_order(fitted):
    model, X, _ = fitted
    backwards = {word: WORDS.index(word) for word in reversed(WORDS)}
    assert model.top_words(backwards, 4) == model.top_words(WORDS, 4)
    assert model.browser(X, backwards) == model.browser(X, WORDS)
    with pytest.raises(ValueError, match="each of 0 to 5 once"):
        model.top_words(dict.fromkeys(WORDS, 0))
    with pytest.raises(TypeError, match="order of columns, found set"):
        model.top_words(set(WORDS))


def test_documents_without_words_have_no_score(fitted):
    model, X, _ = fitted
    with pytest.raises(ValueError, match="X must have words, found 40 documents without any"):
        model.score(0 * X)
    with pytest.raises(ValueError, match="some above 0"):
        model.browser(0 * X)


def test_a_score_is_for_each_word_also_where_words_add_up_to_less_than_one(fitted):
    model, X, _ = fitted
    with pytest.warns(UserWarning, match="fractions"):
        score = model.score(0.001 * X)
    # Almost no words leave the prior as it is, and the bound is the mean over it of a word's log p.
    z = np.random.default_rng(0).multivariate_normal(model.mean_, model.covariance_, size=20_000)
    chances = np.exp(z - np.logaddexp.reduce(z, axis=1)[:, None]) @ model.components_
    assert score == pytest.approx(X.sum(axis=0) @ np.log(chances).mean(axis=0) / X.sum(), abs=0.15)


def test_lists_of_words_are_refused_as_texts(fitted):
    model, _, _ = fitted
    for texts in ([["sea0", "sea1"], ["law0"]], np.array([["sea0"], ["law0"]], object)):
        with pytest.raises(ValueError, match="CountVectorizer"):
            model.transform(texts)
    with pytest.raises(ValueError, match="2D array"):
        model.transform(np.array([], object))


def test_covariates_in_another_order_are_refused(fitted):
    _, X, kind = fitted
    table = pd.DataFrame({"year": kind, "length": X.sum(axis=1)})
    model = CorrelatedTopicModel(2, draws=0, random_state=0).fit(X, covariates=table)
    model.transform(X, covariates=table.to_numpy())
    with pytest.raises(ValueError, match=r"\['year', 'length'\] in this order, found \['length', 'year'\]"):
        model.transform(X, covariates=table[["length", "year"]])

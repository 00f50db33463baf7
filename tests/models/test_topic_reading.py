"""The reading tools on a fitted model: the same as the functions on its arrays, and what is wrong is named."""

import numpy as np
import pytest

from thalweg import CorrelatedTopicModel, topics

WORDS = [f"{kind}{number}" for kind in ("sea", "law") for number in range(6)]


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=80)
    X = rng.poisson(np.where(kind[:, None] == np.arange(12) // 6, 3.0, 0.2))
    return CorrelatedTopicModel(2, draws=0, random_state=0).fit(X), X, kind


def test_methods_are_the_functions(fitted):
    model, X, kind = fitted
    for words in model.top_words(WORDS, 6, by="frex"):
        assert len({word[:3] for word in words}) == 1
    first = topics.top_indices(model.components_, 5)
    np.testing.assert_array_equal(model.coherence(X, 5, "u_mass"), topics.u_mass(first, X))
    np.testing.assert_array_equal(model.coherence(X, 5), topics.npmi(first, X))
    assert len(set(kind[model.top_documents(X, 0, 10)])) == 1
    # Two shares that sum to one can only go against one another.
    np.testing.assert_allclose(model.topic_correlations()[0, 1], -1)
    found = model.completion(X)
    assert found.score > -np.log(12) + 5 * found.standard_error


def test_a_page_names_words_and_documents(fitted):
    model, X, _ = fitted
    page = model.browser(X, WORDS, documents=[f"<report {row}>" for row in range(len(X))], title="Sea & law")
    assert "Sea &amp; law" in page
    assert "sea3" in page
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

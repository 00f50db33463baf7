"""Figure 3 of PG-SVI: curves are scores of what was learned, and verdicts turn with them."""

import json
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_array

from papers import pgsvi_figure3 as figure
from papers._corpora import CORPORA
from papers.claims import FAILS, HOLDS, UNTESTED
from papers.pgsvi_figure3 import (
    FIT,
    INFERENCE,
    OUR_SETTINGS,
    PAPERS_SETTINGS,
    CompletionCurve,
    Figure3Results,
    paired_difference,
)
from thalweg.demo import Experiment
from thalweg.topics import Completion, TopicSettings


class UnigramModel:
    """An estimator that learns the unigram, the better the more passes, and one method worse than the others."""

    def __init__(self, topics, method, seed, settings, documents):
        self.topics, self.noise, self.n_iter_ = topics, 3.0 if method == "delta" else 1.0, 0
        self.settings = TopicSettings(topics, batch_size=documents)

    def partial_fit(self, counts):
        self.n_iter_ += 1
        rows = np.asarray(counts.sum(axis=0)) + 0.1
        noise = np.random.default_rng(0).normal(size=(self.topics, len(rows))) * self.noise / self.n_iter_
        self.components_ = rows * np.exp(noise) / (rows * np.exp(noise)).sum(axis=1, keepdims=True)
        self.mean_, self.covariance_ = np.zeros(self.topics), np.eye(self.topics)
        return self

    def fit(self, counts):
        self.n_iter_ = 9
        return self.partial_fit(counts)


def run_with_unigrams(folder, topics=10):
    write = partial(figure.write_figure, topics=topics, make=UnigramModel)
    return Experiment("pgsvi-figure3", "", "", write).run(folder, quick=True, seed=0)


def test_the_quick_figure_has_every_method_at_both_settings(tmp_path):
    run_with_unigrams(tmp_path)
    curves = json.loads((tmp_path / "curves.json").read_text())
    every = {(method, settings) for method in INFERENCE for settings in (PAPERS_SETTINGS, OUR_SETTINGS, FIT)}
    assert set(curves) == {f"drawn, {method}, {settings}" for method, settings in every}
    for name, curve in curves.items():
        assert curve["passes"] == ([10] if FIT in name else [1, 2, 5])
        assert (np.diff(curve["score"]) > 0).all()
        assert (np.diff(curve["seconds"]) > 0).all()
    assert curves[f"drawn, delta, {OUR_SETTINGS}"]["score"][0] < curves[f"drawn, Laplace, {OUR_SETTINGS}"]["score"][0]
    verdicts = (tmp_path / "claims.csv").read_text()
    assert verdicts.count(UNTESTED) == 5


def completion(score, n=50):
    rng = np.random.default_rng(0)
    tokens = rng.integers(20, 60, size=n)
    shared = rng.normal(size=n)
    return Completion(tokens * (score + 0.1 * shared) + 0.1 * rng.normal(size=n), tokens, np.zeros(n))


def results(scores, seconds, topics=10):
    """Return two points for each method, the second with its score and time."""
    curves = [
        CompletionCurve("AP", name, settings, [1, 2], [0.1, seconds[name]], [completion(-9.0), completion(score)])
        for settings in (PAPERS_SETTINGS, OUR_SETTINGS, FIT)
        for name, score in scores.items()
    ]
    return Figure3Results(curves, topics, True)


SCORES = {"PG-SVI": -8.0, "PG-SVI-MF": -8.01, "mean-field": -8.2, "Laplace": -8.1, "delta": -8.15}
SECONDS = {"PG-SVI": 1.0, "PG-SVI-MF": 2.0, "mean-field": 3.0, "Laplace": 4.0, "delta": 5.0}


def verdicts(outcome):
    return [claim.verdict(outcome) for claim in figure.CLAIMS]


def test_verdicts_turn_with_the_numbers():
    assert verdicts(results(SCORES, SECONDS)) == [HOLDS, HOLDS, UNTESTED, FAILS, HOLDS]
    worse = {**SCORES, "Laplace": -7.9}
    assert verdicts(results(worse, SECONDS)) == [HOLDS, FAILS, UNTESTED, FAILS, FAILS]
    assert verdicts(results(SCORES, {**SECONDS, "PG-SVI": 9.0}))[0] == FAILS
    assert verdicts(results(SCORES, SECONDS, topics=20))[2] == HOLDS
    assert verdicts(results({**SCORES, "Laplace": SCORES["PG-SVI"]}, SECONDS))[1] == FAILS


def test_differences_are_paired_over_documents():
    gain, error = paired_difference(completion(-8.0), completion(-8.1))
    assert gain == pytest.approx(0.1)
    assert error < 0.05 * completion(-8.0).standard_error


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "train", "test", "words"), [("NIPS", 750, 750, 7605), ("AP", 1123, 1123, 10473)])
def test_corpora_have_the_paper_s_sizes(name, train, test, words):
    corpus = CORPORA[name](0)
    assert corpus.train.shape == (train, words)
    assert corpus.test.shape == (test, words)
    assert isinstance(corpus.train, csr_array)


def test_other_numbers_of_topics_have_names():
    titles = {experiment.name: experiment.title for experiment in figure.EXPERIMENTS}
    for topics in (5, 20, 50):
        assert f"{topics} topics" in titles[f"pgsvi-figure3-{topics}-topics"]


def test_at_quick_size_the_figure_is_drawn_for_one_number_of_topics(tmp_path):
    section = run_with_unigrams(tmp_path, topics=20)
    assert [item["kind"] for item in section.items] == ["note"]


def test_programs_of_every_order_are_compiled_before_the_clock_starts():
    read = []

    class Reader:
        settings = TopicSettings(2, batch_size=figure._OUR_BATCH)

        components_, mean_, covariance_ = np.ones((2, 1)), np.zeros(2), np.eye(2)

        def partial_fit(self, counts):
            read.append(counts.toarray().ravel().tolist())

    train, test = csr_array(np.arange(5.0)[:, None]), csr_array(np.full((1, 1), 4))
    figure.measure_passes(Reader, train, test, seed=0, passes=(1, 3))
    assert read[:3] == read[3:]
    assert len(read) == 6

"""Figure 3 of "Faster stochastic variational inference using proximal-gradient methods": correlated topics by time."""

import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import current_process, get_context
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from papers._corpora import CORPORA
from papers.claims import Claim, show_claims
from thalweg.demo import Experiment, Section, plots
from thalweg.models import CorrelatedTopicModel
from thalweg.topics import (
    Completion,
    LogisticNormal,
    Topics,
    TopicSettings,
    continue_topics,
    document_completion,
    starting_topics,
)

INFERENCE = {
    "PG-SVI": "pgsvi",
    "PG-SVI-MF": "pgsvi-mf",
    "mean-field": "mean-field",
    "Laplace": "laplace",
    "delta": "delta",
}
PROXIMAL = ("PG-SVI", "PG-SVI-MF")
PAPERS_SETTINGS, OUR_SETTINGS, FIT = "the paper's settings", "our settings", "fit()"
_TOPICS = 10
_MARKED_PASSES = (2, 5)
"""Passes after which the paper's figure has a marker."""
_MAX_TEST_DOCUMENTS = 200
"""Test documents that a point of a curve is scored on."""
_NEAR = 0.02
"""Nats a token from its own best at which a method has converged."""
_PAPERS_STEP, _PAPERS_BATCH, _OUR_BATCH = 0.001, 2, 128


@dataclass(frozen=True)
class CompletionCurve:
    """A method on a corpus: passes, and after each the seconds of learning and the score on test documents."""

    data: str
    method: str
    settings: str
    passes: list[int]
    seconds: list[float]
    completions: list[Completion]

    @property
    def scores(self) -> np.ndarray:
        """Return the held-out log-likelihood in nats a token, at each point."""
        return np.array([completion.score for completion in self.completions])

    @property
    def best(self) -> Completion:
        """Return the completion at the best point."""
        return self.completions[int(np.nanargmax(self.scores))]

    @property
    def arrival(self) -> float:
        """Return the seconds until it is near its own best."""
        return self.seconds[int(np.flatnonzero(self.scores >= self.best.score - _NEAR)[0])]


@dataclass(frozen=True)
class Figure3Results:
    """All curves, and whether the data were the paper's."""

    curves: list[CompletionCurve]
    topics: int
    full: bool

    @property
    def data(self) -> list[str]:
        """Return the names of the corpora."""
        return list(dict.fromkeys(curve.data for curve in self.curves))

    def winner(self, data: str, settings: str, proximal: bool) -> CompletionCurve:
        """Return the best curve of the proximal methods, or of the others."""
        curves = [curve for curve in self.curves if (curve.data, curve.settings) == (data, settings)]
        kind = [curve for curve in curves if (curve.method in PROXIMAL) == proximal]
        return max(kind, key=lambda curve: curve.best.score)

    def gain(self, data: str, settings: str) -> tuple[float, float]:
        """Return by how much the best proximal method beats the best other one, and the standard error."""
        ours, theirs = (self.winner(data, settings, proximal).best for proximal in (True, False))
        return paired_difference(ours, theirs)

    def is_faster(self, data: str, settings: str) -> bool:
        """Return whether the best proximal method is near its best before the best other one is near its own."""
        ours, theirs = (self.winner(data, settings, proximal) for proximal in (True, False))
        return ours.arrival < theirs.arrival


def paired_difference(completion: Completion, other: Completion) -> tuple[float, float]:
    """Return the difference of two scores of the same halves of the same documents, and its standard error.

    Examples
    --------
    >>> first = Completion(np.array([-8.0, -4.0]), np.array([4, 2]), np.zeros(2))
    >>> second = Completion(np.array([-12.0, -6.0]), np.array([4, 2]), np.zeros(2))
    >>> paired_difference(first, second)
    (1.0, 0.0)
    """
    noise = completion.noise + other.noise
    difference = Completion(completion.log_likelihood - other.log_likelihood, completion.tokens, noise)
    return difference.score, difference.standard_error


def _on_papers_data(test: Callable[[Figure3Results, str], bool]) -> Callable[[Figure3Results], bool | None]:
    return lambda results: all(test(results, data) for data in results.data) if results.full else None


def _is_better(results: Figure3Results, data: str) -> bool:
    gain, error = results.gain(data, PAPERS_SETTINGS)
    return gain > 2 * error


def _fit_is_better(results: Figure3Results, data: str) -> bool:
    ours, papers = (results.winner(data, settings, True).best for settings in (FIT, PAPERS_SETTINGS))
    gain, error = paired_difference(ours, papers)
    return gain > 2 * error


CLAIMS = (
    Claim(
        "methods based on proximal-gradient algorithm converge a little bit faster than the existing methods "
        f"(here: the best of each kind, to within {_NEAR} nats of its own best)",
        _on_papers_data(lambda results, data: results.is_faster(data, PAPERS_SETTINGS)),
    ),
    Claim(
        "More importantly, they achieves better performance (here: by more than two standard errors)",
        _on_papers_data(_is_better),
    ),
    Claim(
        "We obtained similar results when we used a different number of topics",
        lambda results: None if results.topics == _TOPICS else _on_papers_data(_is_better)(results),
    ),
    Claim(
        "(not the paper's) with fit() the proximal methods end better than at the paper's settings",
        _on_papers_data(_fit_is_better),
    ),
    Claim(
        "(not the paper's) at our settings for all methods the proximal ones are still better",
        _on_papers_data(
            lambda results, data: results.gain(data, OUR_SETTINGS)[0] > 2 * results.gain(data, OUR_SETTINGS)[1]
        ),
    ),
)


def write_figure(section: Section, topics: int = _TOPICS, make: Callable[..., Any] | None = None) -> None:
    """Follow five methods at two settings on NIPS and AP, or on a drawn corpus, with four topics, if quick.

    ``make`` takes the arguments of :func:`make_estimator`, which is the default.
    """
    if section.quick and topics != _TOPICS:
        section.note(
            f"In brief it would be the same as pgsvi-figure3 for any number of topics; in full it has {topics}."
        )
        return
    names, passes, topics = (["drawn"], (1, 2, 5), 4) if section.quick else (["NIPS", "AP"], (1, 2, 3, 5, 10), topics)
    longest_first = product((PAPERS_SETTINGS, FIT, OUR_SETTINGS), names, INFERENCE)
    make = make or make_estimator
    jobs = [(name, settings, method, topics, passes, section.seed, make) for settings, name, method in longest_first]
    if section.quick or (workers := min(len(jobs), len(_cores()) // 2)) < 2:
        curves = [measure_curve(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            curves = list(pool.map(_measure_on_own_cores, *zip(*jobs, strict=True)))
    curves = sorted(curves, key=lambda curve: names.index(curve.data))
    show_results(section, Figure3Results(curves, topics, not section.quick))


EXPERIMENTS = tuple(
    Experiment(
        "pgsvi-figure3" if topics == _TOPICS else f"pgsvi-figure3-{topics}-topics",
        f"Correlated topics by time: proximal gradients against bounds, {topics} topics",
        "Faster stochastic variational inference using proximal-gradient methods, Figure 3",
        partial(write_figure, topics=topics),
    )
    for topics in (_TOPICS, 5, 20, 50)
)
"""The figure, and the same with other numbers of topics."""


@dataclass
class TopicStream:
    """Topics learned pass after pass from the same documents; each posterior starts at its prior."""

    settings: TopicSettings
    seed: int
    state: Topics | None = None

    def partial_fit(self, counts: csr_array) -> "TopicStream":
        """Make one pass."""
        table, count = csr_array(counts, dtype=np.float32), counts.shape[0]
        state = self.state or Topics.start(table, 1, starting_topics(table, self.settings.topics)[0])
        seed = self.seed + state.batches
        self.state = continue_topics(state, table, np.ones((count, 1)), self.settings, seed, of=float(count))
        self.components_ = self.state.components(self.settings.smoothing).T
        self.mean_, self.covariance_ = self.state.prevalence.coefficients[0], self.state.prevalence.covariance
        return self


def make_estimator(topics: int, method: str, seed: int, settings: str, documents: int) -> Any:
    """Return the unfitted estimator of a curve.

    The paper gives its own methods two documents a batch and steps of 0.001 on gradients of the sum over all documents
    (its eq. 12), which are D/2 times those of the two; the others, which it runs in their authors' implementation, see
    all documents before each update of topics. ``fit`` is without its final draws, which are the same for any method.
    """
    if settings == FIT:
        return CorrelatedTopicModel(topics, inference=INFERENCE[method], draws=0, random_state=seed)
    options: dict[str, Any] = {"batch_size": _OUR_BATCH if settings == OUR_SETTINGS else documents}
    if settings == PAPERS_SETTINGS and method in PROXIMAL:
        options = {"batch_size": _PAPERS_BATCH, "step": min(1.0, _PAPERS_STEP * documents / _PAPERS_BATCH)}
    return TopicStream(TopicSettings(topics, method=INFERENCE[method], **options), seed)


def measure_curve(
    name: str,
    settings: str,
    method: str,
    topics: int,
    passes: tuple[int, ...],
    seed: int,
    make_model: Callable[..., Any],
) -> CompletionCurve:
    """Measure a method on a corpus at one of the settings; compiling is not counted."""
    corpus = CORPORA[name](seed)
    make = partial(make_model, topics, method, seed, settings, corpus.train.shape[0])
    test = corpus.test[:_MAX_TEST_DOCUMENTS]
    if settings == FIT:
        points = _measure_fit(make, corpus.train, test)
    else:
        points = measure_passes(make, corpus.train, test, seed, passes)
    return CompletionCurve(corpus.name, method, settings, *points)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _measure_on_own_cores(*job: Any) -> CompletionCurve:
    """Measure a curve on two cores that no other worker process uses."""
    worker = int(current_process().name.rsplit("-", 1)[-1]) - 1
    start = 2 * worker % len(_cores())
    os.sched_setaffinity(0, _cores()[start : start + 2])
    curve = measure_curve(*job)
    print(*job[:4], f"{curve.best.score:.4f}", flush=True)
    return curve


def measure_passes(
    make: Callable[[], Any], train: csr_array, test: csr_array, seed: int, passes: tuple[int, ...]
) -> tuple[list[int], list[float], list[Completion]]:
    """Measure pass after pass, with documents in a new order each time."""
    model, rehearsal, rng = make(), make(), np.random.default_rng(seed)
    orders = [train[rng.permutation(train.shape[0])] for _ in range(max(passes))]
    # In our batches another order may need another program.
    for shuffled in orders if model.settings.batch_size == _OUR_BATCH else orders[:1]:
        rehearsal.partial_fit(shuffled)
    total, seconds, completions = 0.0, [], []
    for number, shuffled in enumerate(orders, 1):
        start = time.perf_counter()
        model.partial_fit(shuffled)
        total += time.perf_counter() - start
        if number in passes:
            seconds.append(total)
            completions.append(score(model, test))
    return list(passes), seconds, completions


def _measure_fit(
    make: Callable[[], Any], train: csr_array, test: csr_array
) -> tuple[list[int], list[float], list[Completion]]:
    """Measure ``fit``, the second time: one point."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        make().fit(train)
        start = time.perf_counter()
        model = make().fit(train)
    return [int(model.n_iter_)], [time.perf_counter() - start], [score(model, test)]


def score(model: Any, test: csr_array) -> Completion:
    """Score by document completion under the exact posterior, for all methods alike."""
    return document_completion(test, model.components_, LogisticNormal(model.mean_, model.covariance_))


def show_results(section: Section, results: Figure3Results) -> None:
    """Add the figures, the table and the verdicts."""
    section.note(_SETTING.format(topics=results.topics))
    for data in results.data:
        with section.figure(data, f"{data}: {_FIGURE}", columns=2) as panels:
            contents = {PAPERS_SETTINGS: (PAPERS_SETTINGS,), OUR_SETTINGS: (OUR_SETTINGS, FIT)}
            for axes, (title, settings) in zip(panels, contents.items(), strict=True):
                for curve in results.curves:
                    if curve.data == data and curve.settings in settings:
                        _draw(axes, curve)
                axes.set(xscale="log", xlabel="seconds", ylabel="− held-out log p (nats a token)", title=title)
                axes.xaxis.set_minor_formatter("")  # else labels overlap within a decade
            panels[0].legend()
    section.table("methods", _columns(results), _TABLE)
    show_claims(section, CLAIMS, results)
    section.numbers(
        "curves",
        {
            f"{c.data}, {c.method}, {c.settings}": {"passes": c.passes, "seconds": c.seconds, "score": c.scores}
            for c in results.curves
        },
    )


def _draw(axes: Axes, curve: CompletionCurve) -> None:
    colour = plots.PALETTE[list(INFERENCE).index(curve.method)]
    if curve.settings == FIT:
        axes.plot(curve.seconds, -curve.scores, "*", markersize=10, color=colour)
        return
    markers = [i for i, number in enumerate(curve.passes) if number in _MARKED_PASSES]
    style = "-" if curve.method in PROXIMAL else "--"
    axes.plot(curve.seconds, -curve.scores, style, marker="o", markevery=markers, color=colour, label=curve.method)


def _columns(results: Figure3Results) -> dict[str, list[Any]]:
    return {
        "data": [curve.data for curve in results.curves],
        "settings": [curve.settings for curve in results.curves],
        "method": [curve.method for curve in results.curves],
        "best": [round(curve.best.score, 4) for curve in results.curves],
        "± error": [round(curve.best.standard_error, 4) for curve in results.curves],
        "behind": [round(_behind(results, curve), 4) for curve in results.curves],
        "± behind": [round(_behind(results, curve, 1), 4) for curve in results.curves],
        "seconds": [round(curve.arrival, 2) for curve in results.curves],
    }


def _behind(results: Figure3Results, curve: CompletionCurve, which: int = 0) -> float:
    """Return how far its best is behind the best of all on the same data, or the standard error of that."""
    rivals = [rival.best for rival in results.curves if rival.data == curve.data]
    return paired_difference(max(rivals, key=lambda best: best.score), curve.best)[which]


_FIGURE = (
    "the lower the better. Discs: after two and five passes. Stars: fit() with its defaults, until it ends by itself. "
    "Compiling is left out."
)
_TABLE = (
    "Held-out log-likelihood in nats a token at the best point of each curve, with its standard error over documents; "
    f"how far it is behind the best on these data; and the seconds until it is within {_NEAR} nats of its own best."
)
_SETTING = (
    "A correlated topic model with {topics} topics, learned from half of the documents. The score is document "
    "completion: half of the tokens of a test document are seen, and the others are predicted with the exact posterior "
    "given the topics and the prior, the same for all methods; the paper predicts with each method's own posterior. "
    "At the paper's settings PG-SVI and PG-SVI-MF take steps of 0.001, on two documents at a time and on gradients of "
    "the sum over all (its eq. 12), which is 0.001 D/2 on those of the two; the others see all documents between two "
    "updates of topics, as in the implementation that the paper runs. How many steps it takes on a document before the "
    "next the paper does not say; here they are ten for all. Our settings are the estimator's, with 128 documents at a "
    "time. fit() is without its final draws, which are the same for any method. Each curve has two cores. "
    "All run in one engine here, so seconds compare methods and not implementations. NIPS lacks the words that occur "
    "20 times or less, which the paper keeps; the split into halves is our own."
)

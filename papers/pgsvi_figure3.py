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
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from thalweg.data import load
from thalweg.experiments import claims, plots
from thalweg.experiments.claims import Claim
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.models import CorrelatedTopicModel
from thalweg.topics import (
    Completion,
    LogisticNormal,
    Topics,
    TopicSettings,
    continue_topics,
    document_completion,
)

INFERENCE = {
    "PG-SVI": "pgsvi",
    "PG-SVI-MF": "pgsvi-mf",
    "mean-field": "mean-field",
    "Laplace": "laplace",
    "delta": "delta",
}
PROXIMAL = ("PG-SVI", "PG-SVI-MF")
PAPERS, OURS, WHOLE = "the paper's settings", "our settings", "fit()"
_TOPICS = 10
_MARKED = (2, 5)
"""Passes after which the paper's figure has a marker."""
_SCORED = 200
"""Test documents, at most, that a point of a curve is made from."""
_NEAR = 0.02
"""Nats a token from its own best at which a method has converged."""
_PAPERS_STEP, _PAPERS_BATCH, _OUR_BATCH = 0.001, 2, 128


@dataclass(frozen=True)
class Corpus:
    """Documents to learn from and to test on."""

    name: str
    train: csr_array
    test: csr_array


@dataclass(frozen=True)
class Curve:
    """A method on a corpus: after each number of passes the seconds of learning, and the score on test documents."""

    data: str
    method: str
    settings: str
    passes: list[int]
    seconds: list[float]
    completions: list[Completion]

    @property
    def scores(self) -> np.ndarray:
        """Held-out log-likelihood in nats a token, at each point."""
        return np.array([one.score for one in self.completions])

    @property
    def best(self) -> Completion:
        """At the best point."""
        return self.completions[int(np.nanargmax(self.scores))]

    @property
    def arrival(self) -> float:
        """Seconds until it is near its own best."""
        return self.seconds[int(np.flatnonzero(self.scores >= self.best.score - _NEAR)[0])]


@dataclass(frozen=True)
class Found:
    """All curves, and whether the data were the paper's."""

    curves: list[Curve]
    topics: int
    full: bool

    @property
    def data(self) -> list[str]:
        """The names of the corpora."""
        return list(dict.fromkeys(curve.data for curve in self.curves))

    def of(self, data: str, settings: str, proximal: bool) -> list[Curve]:
        """The curves of the proximal methods, or of the others."""
        mine = [curve for curve in self.curves if (curve.data, curve.settings) == (data, settings)]
        return [curve for curve in mine if (curve.method in PROXIMAL) == proximal]

    def winner(self, data: str, settings: str, proximal: bool) -> Curve:
        """The best of them."""
        return max(self.of(data, settings, proximal), key=lambda curve: curve.best.score)

    def gain(self, data: str, settings: str) -> tuple[float, float]:
        """By how much the best proximal method beats the best other one, with the error of the difference."""
        ours, theirs = (self.winner(data, settings, proximal).best for proximal in (True, False))
        return paired(ours, theirs)

    def faster(self, data: str, settings: str) -> bool:
        """Whether the best proximal method is near its best before the best other one is near its own."""
        ours, theirs = (self.winner(data, settings, proximal) for proximal in (True, False))
        return ours.arrival < theirs.arrival


def paired(one: Completion, other: Completion) -> tuple[float, float]:
    """The difference of two scores of the same halves of the same documents, and its standard error.

    >>> first = Completion(np.array([-8.0, -4.0]), np.array([4, 2]), np.zeros(2))
    >>> second = Completion(np.array([-12.0, -6.0]), np.array([4, 2]), np.zeros(2))
    >>> paired(first, second)
    (1.0, 0.0)
    """
    apart = Completion(one.log_likelihood - other.log_likelihood, one.tokens, one.noise + other.noise)
    return apart.score, apart.standard_error


def _on_papers_data(test: Callable[[Found, str], bool]) -> Callable[[Found], bool | None]:
    return lambda found: all(test(found, data) for data in found.data) if found.full else None


def _better(found: Found, data: str) -> bool:
    gain, error = found.gain(data, PAPERS)
    return gain > 2 * error


def _ours_is_better(found: Found, data: str) -> bool:
    ours, papers = (found.winner(data, settings, True).best for settings in (WHOLE, PAPERS))
    gain, error = paired(ours, papers)
    return gain > 2 * error


CLAIMS = (
    Claim(
        "methods based on proximal-gradient algorithm converge a little bit faster than the existing methods "
        f"(here: the best of each kind, to within {_NEAR} nats of its own best)",
        _on_papers_data(lambda found, data: found.faster(data, PAPERS)),
    ),
    Claim(
        "More importantly, they achieves better performance (here: by more than two standard errors)",
        _on_papers_data(_better),
    ),
    Claim(
        "We obtained similar results when we used a different number of topics",
        lambda found: None if found.topics == _TOPICS else _on_papers_data(_better)(found),
    ),
    Claim(
        "(not the paper's) with fit() the proximal methods end better than at the paper's settings",
        _on_papers_data(_ours_is_better),
    ),
    Claim(
        "(not the paper's) at our settings for all methods the proximal ones are still better",
        _on_papers_data(lambda found, data: found.gain(data, OURS)[0] > 2 * found.gain(data, OURS)[1]),
    ),
)


def pgsvi_figure3(run: Run, topics: int = _TOPICS) -> None:
    """Follow five methods at two settings on NIPS and AP, or on a drawn corpus, with four topics, if quick."""
    if run.quick and topics != _TOPICS:
        run.note(f"In brief it would be the same as pgsvi-figure3 for any number of topics; in full it has {topics}.")
        return
    names, passes, topics = (["drawn"], (1, 2, 5), 4) if run.quick else (["NIPS", "AP"], (1, 2, 3, 5, 10), topics)
    longest_first = product((PAPERS, WHOLE, OURS), names, INFERENCE)
    jobs = [(name, settings, method, topics, passes, run.seed) for settings, name, method in longest_first]
    if run.quick or (workers := min(len(jobs), len(_cores()) // 2)) < 2:
        curves = [follow(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            curves = list(pool.map(_follow_apart, *zip(*jobs, strict=True)))
    show(run, Found(sorted(curves, key=lambda curve: names.index(curve.data)), topics, not run.quick))


for _topics in (_TOPICS, 5, 20, 50):
    experiment(
        "pgsvi-figure3" if _topics == _TOPICS else f"pgsvi-figure3-{_topics}-topics",
        title=f"Correlated topics by time: proximal gradients against bounds, {_topics} topics",
        paper="Faster stochastic variational inference using proximal-gradient methods, Figure 3",
        order=42,
    )(partial(pgsvi_figure3, topics=_topics))


def _halves(name: str, found: Any) -> Corpus:
    """Half of the documents, at random, for training, and the others."""
    parts = np.asarray(found.counts, np.int64), np.asarray(found.indices, np.int32), np.asarray(found.indptr)
    counts = csr_array(parts, shape=(len(found.indptr) - 1, len(found.vocab)))
    order = np.random.default_rng(0).permutation(counts.shape[0])
    return Corpus(name, *(counts[part] for part in np.split(order, [len(order) // 2])))


def drawn(seed: int) -> Corpus:
    """Documents from a correlated topic model: four topics, of which two and two go together."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(120, 0.05), size=4)
    covariance = np.kron(np.eye(2), [[1.5, 1.2], [1.2, 1.5]])
    shares = softmax(rng.multivariate_normal(np.zeros(4), covariance, 120), axis=1)
    counts = csr_array(np.stack([rng.multinomial(60, row @ topics) for row in shares]))
    return Corpus("drawn", counts[:80], counts[80:])


CORPORA: dict[str, Callable[[int], Corpus]] = {
    "NIPS": lambda seed: _halves("NIPS", load("nips_f20")),
    "AP": lambda seed: _halves("AP", load("ap")),
    "drawn": drawn,
}
"""Papers of NIPS, words that occur more than 20 times; news of the Associated Press; and documents that are drawn."""


@dataclass
class Stream:
    """Topics learned pass after pass from the same documents, each posterior from its prior on."""

    settings: TopicSettings
    seed: int
    state: Topics | None = None

    def partial_fit(self, counts: csr_array) -> "Stream":
        """One pass."""
        table, count = csr_array(counts, dtype=np.float32), counts.shape[0]
        state = self.state or Topics.start(table, 1, self.settings.topics)
        seed = self.seed + state.batches
        self.state = continue_topics(state, table, np.ones((count, 1)), self.settings, seed, of=float(count))
        self.components_ = self.state.components(self.settings.smoothing).T
        self.mean_, self.covariance_ = self.state.prevalence.coefficients[0], self.state.prevalence.covariance
        return self


def estimator(topics: int, method: str, seed: int, settings: str, documents: int) -> Any:
    """What learns the topics of a curve, before it has seen data.

    The paper gives its own methods two documents a batch and steps of 0.001 on gradients of the sum over all documents
    (its eq. 12), which are D/2 times those of the two; the others, which it runs in their authors' implementation, see
    all documents before each update of topics. ``fit`` is without the draws that end it, which do not know the method.
    """
    if settings == WHOLE:
        return CorrelatedTopicModel(topics, inference=INFERENCE[method], draws=0, random_state=seed)
    options: dict[str, Any] = {"batch_size": _OUR_BATCH if settings == OURS else documents}
    if settings == PAPERS and method in PROXIMAL:
        options = {"batch_size": _PAPERS_BATCH, "step": min(1.0, _PAPERS_STEP * documents / _PAPERS_BATCH)}
    return Stream(TopicSettings(topics, method=INFERENCE[method], **options), seed)


def follow(name: str, settings: str, method: str, topics: int, passes: tuple[int, ...], seed: int) -> Curve:
    """A method on a corpus at one of the settings; compiling is not counted."""
    corpus = CORPORA[name](seed)
    make = partial(estimator, topics, method, seed, settings, corpus.train.shape[0])
    way = _whole if settings == WHOLE else partial(_stream, passes=passes)
    return Curve(corpus.name, method, settings, *way(make, corpus.train, corpus.test[:_SCORED], seed))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _follow_apart(*job: Any) -> Curve:
    """In a process of its own, on two cores that no other one of them uses."""
    own = int(current_process().name.rsplit("-", 1)[-1]) - 1
    start = 2 * own % len(_cores())
    os.sched_setaffinity(0, _cores()[start : start + 2])
    curve = follow(*job)
    print(*job[:4], f"{curve.best.score:.4f}", flush=True)
    return curve


def _stream(make: Callable[[], Any], train: csr_array, test: csr_array, seed: int, passes: tuple[int, ...]) -> Any:
    """Pass after pass, documents in a new order each time."""
    model, rehearsal, rng = make(), make(), np.random.default_rng(seed)
    orders = [train[rng.permutation(train.shape[0])] for _ in range(max(passes))]
    # In our batches another order may need another program.
    for shuffled in orders if model.settings.batch_size == _OUR_BATCH else orders[:1]:
        rehearsal.partial_fit(shuffled)
    total, seconds, completions = 0.0, [], []
    for number, shuffled in enumerate(orders, 1):
        began = time.perf_counter()
        model.partial_fit(shuffled)
        total += time.perf_counter() - began
        if number in passes:
            seconds.append(total)
            completions.append(score(model, test))
    return list(passes), seconds, completions


def _whole(make: Callable[[], Any], train: csr_array, test: csr_array, seed: int) -> Any:
    """One point: ``fit``, the second time."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        make().fit(train)
        began = time.perf_counter()
        model = make().fit(train)
    return [int(model.n_iter_)], [time.perf_counter() - began], [score(model, test)]


def score(model: Any, test: csr_array) -> Completion:
    """Document completion under the exact posterior, for all methods alike."""
    return document_completion(test, model.components_, LogisticNormal(model.mean_, model.covariance_))


def show(run: Run, found: Found) -> None:
    """Draw, tabulate and judge."""
    run.note(_SETTING.format(topics=found.topics))
    for data in found.data:
        fig, axes = plots.figure(2)
        for one, settings in zip(axes, (PAPERS, OURS), strict=True):
            shown = (PAPERS,) if settings == PAPERS else (OURS, WHOLE)
            for curve in found.curves:
                if curve.data == data and curve.settings in shown:
                    _draw(one, curve)
            one.set(xscale="log", xlabel="seconds", ylabel="− held-out log p (nats a token)", title=settings)
            one.xaxis.set_minor_formatter("")  # else labels overlap within a decade
        axes[0].legend()
        run.figure(data, fig, f"{data}: {_FIGURE}")
    run.table("methods", _columns(found), _TABLE)
    claims.show(run, CLAIMS, found)
    run.numbers(
        "curves",
        {
            f"{c.data}, {c.method}, {c.settings}": {"passes": c.passes, "seconds": c.seconds, "score": c.scores}
            for c in found.curves
        },
    )


def _draw(axes: Axes, curve: Curve) -> None:
    colour = plots.PALETTE[list(INFERENCE).index(curve.method)]
    if curve.settings == WHOLE:
        axes.plot(curve.seconds, -curve.scores, "*", markersize=10, color=colour)
        return
    marked = [i for i, number in enumerate(curve.passes) if number in _MARKED]
    style = "-" if curve.method in PROXIMAL else "--"
    axes.plot(curve.seconds, -curve.scores, style, marker="o", markevery=marked, color=colour, label=curve.method)


def _columns(found: Found) -> dict[str, list[Any]]:
    return {
        "data": [curve.data for curve in found.curves],
        "settings": [curve.settings for curve in found.curves],
        "method": [curve.method for curve in found.curves],
        "best": [round(curve.best.score, 4) for curve in found.curves],
        "± error": [round(curve.best.standard_error, 4) for curve in found.curves],
        "behind": [round(_behind(found, curve), 4) for curve in found.curves],
        "± behind": [round(_behind(found, curve, 1), 4) for curve in found.curves],
        "seconds": [round(curve.arrival, 2) for curve in found.curves],
    }


def _behind(found: Found, curve: Curve, which: int = 0) -> float:
    """How far its best is behind the best of all on the same data, or the error of that."""
    best = max((one for one in found.curves if one.data == curve.data), key=lambda one: one.best.score)
    return paired(best.best, curve.best)[which]


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
    "time. fit() is without the draws that end it, which do not know the method. Each curve has two cores. "
    "All run in one engine here, so seconds compare methods and not implementations. NIPS lacks the words that occur "
    "20 times or less, which the paper keeps; the split into halves is our own."
)

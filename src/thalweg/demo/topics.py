"""Topics that go together, and a covariate that moves them: CorrelatedTopicModel on documents drawn for it."""

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from thalweg.experiments import plots
from thalweg.experiments.registry import experiment
from thalweg.experiments.section import Run
from thalweg.models import CorrelatedTopicModel
from thalweg.topics.layout import topic_map

_SUBJECTS = {
    "sea": "wave tide harbour sail anchor reef gull shore storm keel current salt island net deck",
    "weather": "storm cloud rain wind forecast front pressure snow fog season sky wave frost sun gale",
    "market": "price stock trade bank bond profit share broker loan index growth currency fund debt rate",
    "court": "judge trial law appeal jury verdict witness lawyer charge case ruling right bank crime debt",
    "kitchen": "bread oven salt butter recipe dough spice onion soup knife sugar flour taste season pan",
    "garden": "seed soil rain root leaf bloom prune season hedge sun bulb rose frost spade onion",
}
_TOGETHER = [("sea", "weather"), ("market", "court"), ("kitchen", "garden")]
_COMMON = "new year day time people place work long good small great old part end way"
_EFFECT = 0.8
"""Of the year, in its standard deviations, on z of the market, less that on z of the sea."""


@experiment("demo-topics", title="Topics that go together", paper="Demonstration", demo=True, order=5)
def demo_topics(run: Run) -> None:
    """Draw documents from six subjects, find them again, their map, and what the year does."""
    rng = np.random.default_rng(run.seed)
    counts, vocabulary, truth, year = _drawn(rng, 240)
    model = CorrelatedTopicModel(len(_SUBJECTS), random_state=run.seed).fit(counts, covariates=year)
    names, cosines, order = _named(model.components_, truth)
    shares = model.transform(counts, covariates=year).mean(axis=0)
    strongest = [" ".join(vocabulary[np.argsort(-model.components_[k])[:6]]) for k in order]
    effects = model.effects()
    run.table(
        "topics",
        {
            "subject": names,
            "its strongest words": strongest,
            "share of all words": [f"{100 * shares[k]:.0f} %" for k in order],
            "cosine with the truth": [f"{cosine:.3f}" for cosine in cosines],
            "effect of the year": [f"{effects.means[k]:+.2f} ± {1.96 * effects.deviations[k]:.2f}" for k in order],
            "drawn with": [f"{effect:+.2f}" for effect in _effects(names)],
        },
        "Six subjects found from counts of words alone; the year moves the market up and the sea down, "
        "with 95 % intervals from draws of the joint posterior.",
    )
    correlations = model.topic_correlations()[np.ix_(order, order)]
    run.figure("map", _map(model.components_[order], shares[order], correlations, names), _CAPTION)


_CAPTION = (
    "Left: topics as circles, near one another where they use the same words, of an area that is their share; lines "
    "join those that occur in the same documents more than others. Right: the correlations. Pairs were drawn together: "
    "sea and weather, market and court, kitchen and garden."
)


def _effects(names: list[str]) -> np.ndarray:
    """Of the year on z of each subject; they add up to 0."""
    return np.array([{"market": _EFFECT / 2, "sea": -_EFFECT / 2}.get(name, 0.0) for name in names])


def _drawn(rng: np.random.Generator, documents: int) -> tuple[csr_array, np.ndarray, dict, np.ndarray]:
    words = {name: text.split() for name, text in _SUBJECTS.items()}
    vocabulary = np.array(sorted({*_COMMON.split(), *(word for text in words.values() for word in text)}))
    place = {word: column for column, word in enumerate(vocabulary)}
    truth = {}
    for name, own in words.items():
        chances = np.zeros(len(vocabulary))
        chances[[place[word] for word in own]] = 0.85 / np.arange(2, len(own) + 2) ** 0.7
        chances[[place[word] for word in _COMMON.split()]] += 0.15 / len(_COMMON.split())
        truth[name] = chances / chances.sum()
    subjects = list(_SUBJECTS)
    covariance = np.eye(len(subjects))
    for one, other in _TOGETHER:
        i, j = subjects.index(one), subjects.index(other)
        covariance[i, j] = covariance[j, i] = 0.75
    year = rng.normal(size=documents)
    z = rng.multivariate_normal(np.zeros(len(subjects)), 1.5 * covariance, size=documents)
    z += np.outer(year, _effects(subjects))
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    chances = shares @ np.array([truth[name] for name in subjects])
    counts = np.stack([rng.multinomial(100, chance) for chance in chances])
    return csr_array(counts), vocabulary, truth, year


def _named(components: np.ndarray, truth: dict) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The subject of each topic: matched by their cosines, in the subjects' order."""
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(np.array(list(truth.values()))) @ unit(components).T
    rows, columns = linear_sum_assignment(-cosines)
    return [list(truth)[row] for row in rows], cosines[rows, columns], columns


def _map(topics: np.ndarray, shares: np.ndarray, correlations: np.ndarray, names: list[str]) -> Any:
    places = topic_map(topics)
    fig, axes = plots.figure(2, height=3.4)
    for i in range(len(names)):
        for j in range(i):
            if correlations[i, j] > 0.15:
                axes[0].plot(*places[[i, j]].T, color=plots.INK, linewidth=4 * correlations[i, j], alpha=0.5, zorder=1)
    axes[0].scatter(*places.T, s=4000 * shares, color=plots.PALETTE[0], alpha=0.6, zorder=2)
    apart = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(len(names), np.inf))
    for name, spot, nearest in zip(names, places, places[apart.argmin(axis=1)], strict=True):
        away = 16 if spot[1] >= nearest[1] else -16  # from the one beside it, whose disc may cover this
        axes[0].annotate(name, spot, (0, away), textcoords="offset points", ha="center", va="center", zorder=3)
    axes[0].margins(0.3)
    axes[0].set(xticks=[], yticks=[], title="map")
    shown = axes[1].imshow(correlations, cmap="RdBu_r", vmin=-1, vmax=1)
    axes[1].set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes[1].set_yticks(range(len(names)), names)
    axes[1].set_title("correlations")
    axes[1].grid(visible=False)
    fig.colorbar(shown, ax=axes[1])
    return fig

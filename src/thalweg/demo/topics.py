"""Topics that go together, and a covariate that moves them: CorrelatedTopicModel on generated documents."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from thalweg.demo import plots
from thalweg.demo.section import Section, experiment
from thalweg.models import CorrelatedTopicModel

_SUBJECTS = {
    "sea": "wave tide harbour sail anchor reef gull shore storm keel current salt island net deck",
    "weather": "storm cloud rain wind forecast front pressure snow fog season sky wave frost sun gale",
    "market": "price stock trade bank bond profit share broker loan index growth currency fund debt rate",
    "court": "judge trial law appeal jury verdict witness lawyer charge case ruling right bank crime debt",
    "kitchen": "bread oven salt butter recipe dough spice onion soup knife sugar flour taste season pan",
    "garden": "seed soil rain root leaf bloom prune season hedge sun bulb rose frost spade onion",
}
_COMMON_WORDS = "new year day time people place work long good small great old part end way"
# The effect of one standard deviation of the year on z, about five standard errors. Twice as much is seen more easily.
_EFFECTS = {"market": 0.4, "sea": -0.4}


@experiment("demo-topics", title="Topics that go together", paper="Demonstration")
def topics(section: Section) -> None:
    """Draw documents from six subjects; estimate the subjects, their correlations, and the effect of the year."""
    counts, vocabulary, truth, year = _draw_documents(np.random.default_rng(section.seed), 240)
    model = CorrelatedTopicModel(len(_SUBJECTS), random_state=section.seed).fit(counts, covariates=year)
    order, cosines = _match(model.components_, truth)
    shares = model.transform(counts, covariates=year).mean(axis=0)
    effects = model.effects()
    section.table(
        "topics",
        {
            "subject": list(_SUBJECTS),
            "its strongest words": [" ".join(vocabulary[np.argsort(-model.components_[k])[:6]]) for k in order],
            "share of all words": [f"{100 * shares[k]:.0f} %" for k in order],
            "cosine with the truth": [f"{cosine:.3f}" for cosine in cosines],
            "effect of the year": [f"{effects.means[k]:+.2f} ± {1.96 * effects.deviations[k]:.2f}" for k in order],
            "drawn with": [f"{_EFFECTS.get(name, 0.0):+.2f}" for name in _SUBJECTS],
        },
        "Six subjects found from counts of words alone; the year moves the market up and the sea down, "
        "with 95 % intervals from draws of the joint posterior.",
    )
    correlations = model.topic_correlations()[np.ix_(order, order)]
    _draw_map(section, model.components_[order], shares[order], correlations)


def _draw_documents(rng: np.random.Generator, documents: int) -> tuple[csr_array, np.ndarray, np.ndarray, np.ndarray]:
    """Return word counts, the vocabulary, the true topics and the year; each two subjects in a row are correlated."""
    subjects = [text.split() for text in _SUBJECTS.values()]
    common = _COMMON_WORDS.split()
    vocabulary = np.unique([*common, *(word for words in subjects for word in words)])
    truth = np.zeros((len(subjects), len(vocabulary)))
    for topic, words in zip(truth, subjects, strict=True):
        topic[np.searchsorted(vocabulary, words)] = 0.85 / np.arange(2, len(words) + 2) ** 0.7
        topic[np.searchsorted(vocabulary, common)] += 0.15 / len(common)
    truth /= truth.sum(axis=1, keepdims=True)
    covariance = np.kron(np.eye(len(subjects) // 2), [[1.0, 0.75], [0.75, 1.0]])
    year = rng.normal(size=documents)
    z = rng.multivariate_normal(np.zeros(len(subjects)), 1.5 * covariance, size=documents)
    z += np.outer(year, [_EFFECTS.get(name, 0.0) for name in _SUBJECTS])
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(100, probabilities) for probabilities in shares @ truth])
    return csr_array(counts), vocabulary, truth, year


def _match(components: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the topic of each subject, matched by their cosines, and these."""
    normalise = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = normalise(truth) @ normalise(components).T
    rows, columns = linear_sum_assignment(-cosines)
    return columns, cosines[rows, columns]


def _draw_map(section: Section, topics: np.ndarray, shares: np.ndarray, correlations: np.ndarray) -> None:
    names = list(_SUBJECTS)
    # Principal components of the square roots of the topics: distances are about Hellinger distances.
    left, scales, _ = np.linalg.svd(np.sqrt(topics) - np.sqrt(topics).mean(axis=0), full_matrices=False)
    points = left[:, :2] * scales[:2]
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(len(names), np.inf))
    caption = (
        "Left: topics as circles, near one another where they use the same words, of an area that is their share; "
        "lines join those that occur in the same documents more than others. Right: the correlations. Pairs were drawn "
        "together: sea and weather, market and court, kitchen and garden."
    )
    with section.figure("map", caption, columns=2) as axes:
        for i, j in np.argwhere(np.tril(correlations, -1) > 0.15):
            axes[0].plot(*points[[i, j]].T, color=plots.INK, linewidth=4 * correlations[i, j], alpha=0.5, zorder=1)
        axes[0].scatter(*points.T, s=4000 * shares, color=plots.PALETTE[0], alpha=0.6, zorder=2)
        for name, point, nearest in zip(names, points, points[distances.argmin(axis=1)], strict=True):
            shift = 16 if point[1] >= nearest[1] else -16  # away from the nearest circle, which may cover the name
            axes[0].annotate(name, point, (0, shift), textcoords="offset points", ha="center", va="center", zorder=3)
        axes[0].margins(0.3)
        axes[0].set(xticks=[], yticks=[], title="map")
        image = axes[1].imshow(correlations, cmap="RdBu_r", vmin=-1, vmax=1)
        axes[1].set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes[1].set_yticks(range(len(names)), names)
        axes[1].set_title("correlations")
        axes[1].grid(visible=False)
        axes[1].figure.colorbar(image, ax=axes[1])

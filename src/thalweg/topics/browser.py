"""Topics as one page of HTML that needs no network: a map, words, documents, and which topics go together.

The page is complete as it is written: every topic has its words and documents on it, and the map and the graph link to
them. Its script only shows one topic at a time and searches.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from thalweg.arguments import whole
from thalweg.topics.layout import ring_order, topic_map, without_hiding
from thalweg.topics.reading import (
    ORDERS,
    as_proportions,
    as_vocabulary,
    correlation_graph,
    top_documents,
    top_indices,
    topic_correlations,
)
from thalweg.topics.tables import distributions, whole_counts

_SEARCHABLE = 20_000
"""Words that the search box knows, the most frequent ones."""
_EDGES = 3
"""Edges of the graph for each topic, on average; the strongest are drawn."""
_ORDER_NAMES = {"probability": "probability", "frex": "FREX", "lift": "lift"}


@dataclass(frozen=True)
class _Topics:
    """What the page is made of."""

    components: np.ndarray
    words: list[str]
    proportions: np.ndarray
    prevalence: np.ndarray
    overall: np.ndarray
    titles: list[str]
    best: dict[str, np.ndarray]
    """Columns of each topic's words, by each order."""
    documents: int

    def name(self, topic: int, words: int = 3) -> str:
        return ", ".join(self.words[i] for i in self.best["probability"][topic, :words])


def topic_browser(
    components: Any,
    vocabulary: Any,
    proportions: Any,
    *,
    counts: Any = None,
    documents: Sequence[str] | None = None,
    title: str = "Topics",
    n_words: int = 20,
    n_documents: int = 8,
) -> str:
    """Topics as one page of HTML that can be mailed, archived and read without a network.

    A map on which topics that are alike are near (classical scaling of Jensen–Shannon distances; the area of a disc is
    how much of the corpus is of its topic), the words of each topic by probability, FREX or lift beside how often they
    occur overall, its documents, the graph of topics that go together, and a search box.

    Parameters
    ----------
    components
        p(word | topic), one topic a row.
    vocabulary
        The words, in the order of the columns of ``components``.
    proportions
        Documents by topics.
    counts
        Documents by words. Then a topic's part of the corpus is counted in tokens, and a word's overall frequency is
        that of the corpus; without it they are means over documents and over topics.
    documents
        A title or a few words of each document; without it a document is called by its row and, if ``counts`` is
        given, by its most frequent words.
    title
        The heading.
    n_words, n_documents
        How many words and documents of each topic to show.

    Returns
    -------
    str
        The page; ``Path("topics.html").write_text(page, encoding="utf-8")`` keeps it.

    Examples
    --------
    >>> page = topic_browser([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], ["rain", "wind", "court"], [[0.9, 0.1], [0.2, 0.8]])
    >>> page[:15], "https:" in page, page.count('class="topic"')
    ('<!DOCTYPE html>', False, 2)
    """
    topics = _collect(components, vocabulary, proportions, counts, documents, n_words, n_documents)
    script, style = _resource("browser.js"), _resource("browser.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    count = len(topics.components)
    facts = f"{count} topics, {len(topics.words)} words, {len(topics.proportions)} documents"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{_text(title)}</h1><p>{facts}</p></header>
<div class="tools">
<fieldset><legend>Words by</legend>{"".join(map(_choice, ORDERS))}</fieldset>
<label class="needs-script">Search <input type="search" id="search" placeholder="a word or a title"></label>
</div>
<ul id="found" role="status" aria-label="Search results"></ul>
<main>
<div>
{_map(topics)}
{_graph(topics)}
</div>
<div>
<p class="needs-script">Choose a topic on the map or the ring, or walk with the arrow keys ← and →.</p>
{"".join(_section(topics, topic) for topic in range(count))}</div>
</main>
<footer>Made by Thalweg. This page needs no network.</footer>
<script type="application/json" id="data">{_json(_search_data(topics))}</script>
<script>{script}</script>
</body>
</html>
"""


def _collect(
    components: Any, vocabulary: Any, proportions: Any, counts: Any, documents: Any, n_words: int, n_documents: int
) -> _Topics:
    table, shares = distributions(components), as_proportions(proportions)
    words = [_clean(word) for word in as_vocabulary(vocabulary, table.shape[1])]
    if shares.shape[1] != len(table):
        raise ValueError(f"proportions must have a column for each of the {len(table)} topics, found {shares.shape[1]}")
    if documents is not None and len(documents) != len(shares):
        raise ValueError(f"documents must have a title for each of the {len(shares)} rows, found {len(documents)}")
    lengths, overall, names = np.ones(len(shares)), table.mean(axis=0), [""] * len(shares)
    if counts is not None:
        bags = whole_counts(counts)
        if bags.shape != (len(shares), len(words)):
            raise ValueError(f"counts must be of shape {(len(shares), len(words))}, found {bags.shape}")
        lengths, total = bags.sum(axis=1), bags.sum(axis=0)
        overall = total / max(total.sum(), 1)
        names = [_frequent(bags.indices[a:b], bags.data[a:b], words) for a, b in _ends(bags)]
    titles = [f"document {row + 1}" + (f": {name}" if name else "") for row, name in enumerate(names)]
    if documents is not None:
        titles = [_clean(str(each)) for each in documents]
    prevalence = lengths @ shares
    prevalence = prevalence / max(prevalence.sum(), 1e-300)
    best = {order: top_indices(table, whole("n_words", n_words), order, frequency=overall) for order in ORDERS}
    return _Topics(table, words, shares, prevalence, overall, titles, best, whole("n_documents", n_documents))


def _ends(bags: Any) -> Any:
    return zip(bags.indptr[:-1], bags.indptr[1:], strict=True)


def _frequent(indices: np.ndarray, times: np.ndarray, words: list[str]) -> str:
    return ", ".join(words[indices[i]] for i in np.argsort(-times, kind="stable")[:6])


def _choice(order: str) -> str:
    checked = " checked" if order == "probability" else ""
    return f'<label><input type="radio" name="by" id="by-{order}"{checked}> {_ORDER_NAMES[order]}</label>'


def _map(topics: _Topics) -> str:
    width, height = 520, 420
    points = topic_map(topics.components)
    largest = np.clip(150 / np.sqrt(len(points)), 16, 56)
    radii = np.maximum(largest * np.sqrt(topics.prevalence / topics.prevalence.max()), 8)
    middle, span = (points.max(axis=0) + points.min(axis=0)) / 2, np.ptp(points, axis=0)
    room = np.array([width, height]) - 2 * largest - 12
    scale = np.min(room / np.maximum(span, 1e-9))
    places = np.array([width, height]) / 2 + (points - middle) * min(scale, 1e4) * (1, -1)
    places = without_hiding(places, radii, (width, height))
    discs = "".join(
        _link(topics, k, f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="{radii[k]:.1f}"/>', x, y)
        for k, (x, y) in sorted(enumerate(places), key=lambda place: -radii[place[0]])
    )
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="group" aria-label="Map of topics">{discs}</svg>'
        "<figcaption>Topics that use the same words are near each other, moved a little where one would hide another; "
        "the area of a disc is how much of the corpus is of its topic.</figcaption></figure>"
    )


def _graph(topics: _Topics) -> str:
    count = len(topics.components)
    width, height, radius = 520, 420, 140
    graph = correlation_graph(topics.proportions, "neighbours")
    angles = np.empty(count)
    angles[ring_order(topic_correlations(topics.proportions))] = 2 * np.pi * np.arange(count) / count
    places = np.stack([width / 2 + radius * np.sin(angles), height / 2 - radius * np.cos(angles)], axis=1)
    strongest = zip(graph.edges[: _EDGES * count], graph.correlations, strict=False)
    lines = "".join(_arc(places[i], places[j], np.array([width, height]) / 2, value) for (i, j), value in strongest)
    size = 5 if count > 30 else 7
    marks = "".join(_ring_mark(topics, k, places[k][0], places[k][1], angles[k], size) for k in range(count))
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="group" aria-label="Graph of topics that go together">'
        f"{lines}{marks}</svg><figcaption>Topics that occur in the same documents: a line joins two that predict each "
        f"other when all others are known{_at_most(len(graph.edges), count)}; the broader, the more correlated."
        "</figcaption></figure>"
    )


def _arc(start: np.ndarray, end: np.ndarray, centre: np.ndarray, value: float) -> str:
    bend = (start + end) / 4 + centre / 2
    (a, b), (c, d), (e, f) = start, bend, end
    path = f"M{a:.1f} {b:.1f} Q{c:.1f} {d:.1f} {e:.1f} {f:.1f}"
    return f'<path class="edge" stroke-width="{0.8 + 7 * value:.1f}" d="{path}"/>'


def _at_most(edges: int, count: int) -> str:
    if not edges:
        return " (here no two do)"
    return f" (the {_EDGES * count} strongest of {edges})" if edges > _EDGES * count else ""


def _ring_mark(topics: _Topics, k: int, x: float, y: float, angle: float, size: int) -> str:
    many = len(topics.components) > 30
    out = np.array([np.sin(angle), -np.cos(angle)])
    tx, ty = np.array([x, y]) + out * (size + 6)
    anchor = "middle" if abs(out[0]) < 0.2 else "start" if out[0] > 0 else "end"
    label = f"{k + 1}" if many else f"{k + 1} {topics.name(k, 1)[:14]}"
    text = f'<text x="{tx:.1f}" y="{ty + 4 + 5 * out[1]:.1f}" text-anchor="{anchor}">{_text(label)}</text>'
    return _link(topics, k, f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>{text}')


def _link(topics: _Topics, k: int, drawing: str, x: float | None = None, y: float | None = None) -> str:
    words = f"Topic {k + 1}: {topics.name(k, 5)}; {100 * topics.prevalence[k]:.1f} % of the corpus"
    number = "" if x is None or y is None else f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{k + 1}</text>'
    return f'<a href="#topic-{k + 1}" aria-label="{_text(words)}"><title>{_text(words)}</title>{drawing}{number}</a>'


def _section(topics: _Topics, k: int) -> str:
    tables = "".join(_words(topics, k, order) for order in ORDERS)
    rows = top_documents(topics.proportions, k, topics.documents)
    items = "".join(
        f'<li><bdi>{_text(topics.titles[row])}</bdi> <span class="share">{100 * topics.proportions[row, k]:.0f} %'
        "</span></li>"
        for row in rows
    )
    return (
        f'<section class="topic" id="topic-{k + 1}"><h2>Topic {k + 1}: <bdi>{_text(topics.name(k))}</bdi></h2>'
        f'<p class="facts">{100 * topics.prevalence[k]:.1f} % of the corpus</p>{tables}'
        f'<h3>Documents with most of it</h3><ol class="documents">{items}</ol></section>\n'
    )


def _words(topics: _Topics, k: int, order: str) -> str:
    best = topics.best[order][k]
    inside, overall = topics.components[k, best], topics.overall[best]
    full = max(inside.max(), overall.max(), 1e-300)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{_text(topics.words[word])}</bdi></th><td>'
        f'<div class="bar" style="width:{100 * p / full:.1f}%"></div>'
        f'<div class="all" style="width:{100 * q / full:.1f}%"></div></td>'
        f'<td class="number">{_percent(p)}</td><td class="number">{_percent(q)}</td></tr>'
        for word, p, q in zip(best, inside, overall, strict=True)
    )
    return (
        f'<table class="by-{order}"><caption>Words by {_ORDER_NAMES[order]}</caption>'
        '<thead><tr><th scope="col">word</th><td></td><th scope="col" class="number">in topic</th>'
        f'<th scope="col" class="number">overall</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-5 else "0 %"


def _search_data(topics: _Topics) -> dict[str, Any]:
    """Each word's three most likely topics, p(topic | word), and the titles on the page."""
    joint = topics.components * topics.prevalence[:, None]
    frequent = np.argsort(-topics.overall, kind="stable")[:_SEARCHABLE]
    likely = np.argsort(-joint[:, frequent], axis=0, kind="stable")[:3].T
    shares = joint[:, frequent] / np.maximum(joint[:, frequent].sum(axis=0), 1e-300)
    words = [
        [topics.words[word], [[int(k), round(float(shares[k, place]), 3)] for k in best]]
        for place, (word, best) in enumerate(zip(frequent, likely, strict=True))
    ]
    shown = [
        [topics.titles[row] for row in top_documents(topics.proportions, k, topics.documents)]
        for k in range(len(topics.components))
    ]
    return {"words": words, "topics": shown}


def _json(value: Any) -> str:
    """JSON that no browser could take for the end of a script, or for markup."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean(text: str) -> str:
    """Without what a page cannot hold: control characters and halves of characters."""
    whole_text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else " " for letter in whole_text)


def _text(text: str) -> str:
    return escape(_clean(text), quote=True)


def _resource(name: str) -> str:
    return files("thalweg.topics").joinpath(name).read_text(encoding="utf-8")

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
from string import Template
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from thalweg.arguments import whole
from thalweg.topics.layout import ring_order, separate_discs, topic_map
from thalweg.topics.reading import ORDERS, correlation_graph, top_documents, top_indices, topic_correlations
from thalweg.topics.tables import as_counts, as_proportions, as_topics, as_vocabulary

__all__ = ["topic_browser"]

EDGES_PER_TOPIC = 3
"""Edges of the graph for each topic on average, the strongest first: twice as many hide one another."""
_ORDER_NAMES = {"probability": "probability", "frex": "FREX", "lift": "lift"}


@dataclass(frozen=True)
class _PageContent:
    """Everything that the page shows."""

    components: np.ndarray
    words: list[str]
    proportions: np.ndarray
    prevalence: np.ndarray
    frequency: np.ndarray
    titles: list[str]
    best_words: dict[str, np.ndarray]
    """Columns of each topic's words, by each order."""
    best_documents: list[np.ndarray]
    """Rows of each topic's documents."""
    figure_size: tuple[int, int] = (520, 420)
    """Width and height of the map and of the graph in pixels."""

    def name(self, topic: int, words: int = 3) -> str:
        return ", ".join(self.words[i] for i in self.best_words["probability"][topic, :words])


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
    """Show topics on one page of HTML that can be mailed, archived and read without a network.

    A map on which topics that are alike are near (classical scaling of Jensen–Shannon distances; the area of a disc is
    the topic's share of the corpus), the words of each topic by probability, FREX or lift beside how often they occur
    overall, its documents, the graph of topics that go together, and a search box.

    Parameters
    ----------
    components
        p(word | topic), one topic a row.
    vocabulary
        The words, in the order of the columns of ``components``.
    proportions
        Documents by topics.
    counts
        Documents by words. Then a topic's share of the corpus is counted in tokens, and a word's overall frequency is
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
        The page; ``Path("topics.html").write_text(page, encoding="utf-8")`` writes it.

    Examples
    --------
    >>> page = topic_browser([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], ["rain", "wind", "court"], [[0.9, 0.1], [0.2, 0.8]])
    >>> page[:15], "https:" in page, page.count('class="topic"')
    ('<!DOCTYPE html>', False, 2)
    """
    topics, shares = as_topics(components), as_proportions(proportions)
    words = [_clean(word) for word in as_vocabulary(vocabulary, topics.shape[1])]
    if shares.shape[1] != len(topics):
        raise ValueError(
            f"proportions must have a column for each of the {len(topics)} topics, found {shares.shape[1]}"
        )
    if documents is not None and len(documents) != len(shares):
        raise ValueError(f"documents must have a title for each of the {len(shares)} rows, found {len(documents)}")
    lengths, frequency, table = np.ones(len(shares)), topics.mean(axis=0), None
    if counts is not None:
        table = as_counts(counts)
        if table.shape != (len(shares), len(words)):
            raise ValueError(f"counts must be of shape {(len(shares), len(words))}, found {table.shape}")
        lengths, total = table.sum(axis=1), table.sum(axis=0)
        frequency = total / max(total.sum(), 1)
    titles = _titles(len(shares), table, words) if documents is None else [_clean(str(each)) for each in documents]
    prevalence = lengths @ shares
    prevalence = prevalence / max(prevalence.sum(), 1e-300)
    best_words = {order: top_indices(topics, whole("n_words", n_words), order, frequency=frequency) for order in ORDERS}
    best_documents = [top_documents(shares, k, whole("n_documents", n_documents)) for k in range(len(topics))]
    content = _PageContent(topics, words, shares, prevalence, frequency, titles, best_words, best_documents)
    script = _resource("browser.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_resource("browser.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        title=_text(title),
        facts=f"{len(topics)} topics, {len(words)} words, {len(shares)} documents",
        orders="".join(map(_order_button, ORDERS)),
        map=_map(content),
        graph=_graph(content),
        sections="".join(_section(content, topic) for topic in range(len(topics))),
        data=_json(_search_data(content)),
        style=_resource("browser.css"),
        script=script,
    )


def _titles(rows: int, counts: csr_array | None, words: list[str]) -> list[str]:
    """Call documents by their rows and, where there are counts, by their six most frequent words."""
    titles = [f"document {row + 1}" for row in range(rows)]
    if counts is None:
        return titles
    for row, (first, last) in enumerate(zip(counts.indptr[:-1], counts.indptr[1:], strict=True)):
        order = np.argsort(-counts.data[first:last], kind="stable")[:6]
        frequent = ", ".join(words[column] for column in counts.indices[first:last][order])
        titles[row] += f": {frequent}" if frequent else ""
    return titles


def _order_button(order: str) -> str:
    checked = " checked" if order == "probability" else ""
    return f'<label><input type="radio" name="by" id="by-{order}"{checked}> {_ORDER_NAMES[order]}</label>'


def _figure(content: _PageContent, label: str, drawing: str, caption: str) -> str:
    width, height = content.figure_size
    svg = f'<svg viewBox="0 0 {width} {height}" role="group" aria-label="{label}">{drawing}</svg>'
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _map(content: _PageContent) -> str:
    points, size = topic_map(content.components), np.array(content.figure_size)
    largest = np.clip(150 / np.sqrt(len(points)), 16, 56)
    radii = np.maximum(largest * np.sqrt(content.prevalence / content.prevalence.max()), 8)
    middle, extent = (points.max(axis=0) + points.min(axis=0)) / 2, np.ptp(points, axis=0)
    scale = np.min((size - 2 * largest - 12) / np.maximum(extent, 1e-9))
    centres = separate_discs(size / 2 + (points - middle) * min(scale, 1e4) * (1, -1), radii, content.figure_size)
    number = lambda k: f'<text x="{centres[k, 0]:.1f}" y="{centres[k, 1] + 4:.1f}" text-anchor="middle">{k + 1}</text>'
    discs = "".join(_link(content, k, centres[k], radii[k], number(k)) for k in np.argsort(-radii, kind="stable"))
    caption = (
        "Topics that use the same words are near each other, moved a little where one would hide another; the area of "
        "a disc is the topic's share of the corpus."
    )
    return _figure(content, "Map of topics", discs, caption)


def _graph(content: _PageContent) -> str:
    count, centre = len(content.components), np.array(content.figure_size) / 2
    graph = correlation_graph(content.proportions, "neighbours")
    angles = np.empty(count)
    angles[ring_order(topic_correlations(content.proportions))] = 2 * np.pi * np.arange(count) / count
    directions = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    points = centre + content.figure_size[1] / 3 * directions
    most = EDGES_PER_TOPIC * count
    strongest = zip(graph.edges[:most], graph.correlations, strict=False)
    arcs = "".join(_arc(points[i], points[j], centre, value) for (i, j), value in strongest)
    marks = "".join(_ring_mark(content, k, points[k], directions[k]) for k in range(count))
    shown = f" (the {most} strongest of {len(graph.edges)})" if len(graph.edges) > most else ""
    shown = shown if len(graph.edges) else " (here no two do)"
    caption = (
        "Topics that occur in the same documents: a line joins two that predict each other when all others are "
        f"known{shown}; the broader, the more correlated."
    )
    return _figure(content, "Graph of topics that go together", arcs + marks, caption)


def _arc(start: np.ndarray, end: np.ndarray, centre: np.ndarray, correlation: float) -> str:
    (a, b), (c, d), (e, f) = start, (start + end) / 4 + centre / 2, end
    path = f"M{a:.1f} {b:.1f} Q{c:.1f} {d:.1f} {e:.1f} {f:.1f}"
    return f'<path class="edge" stroke-width="{0.8 + 7 * correlation:.1f}" d="{path}"/>'


def _ring_mark(content: _PageContent, k: int, point: np.ndarray, direction: np.ndarray) -> str:
    crowded = len(content.components) > 30
    radius, label = (5, f"{k + 1}") if crowded else (7, f"{k + 1} {content.name(k, 1)[:14]}")
    x, y = point + direction * (radius + 6)
    anchor = "middle" if abs(direction[0]) < 0.2 else "start" if direction[0] > 0 else "end"
    text = f'<text x="{x:.1f}" y="{y + 4 + 5 * direction[1]:.1f}" text-anchor="{anchor}">{_text(label)}</text>'
    return _link(content, k, point, radius, text)


def _link(content: _PageContent, k: int, centre: np.ndarray, radius: float, text: str) -> str:
    """Draw a disc and a text that lead to the section of a topic."""
    words = f"Topic {k + 1}: {content.name(k, 5)}; {100 * content.prevalence[k]:.1f} % of the corpus"
    disc = f'<circle class="disc" cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" r="{radius:.3g}"/>'
    return f'<a href="#topic-{k + 1}" aria-label="{_text(words)}"><title>{_text(words)}</title>{disc}{text}</a>'


def _section(content: _PageContent, k: int) -> str:
    tables = "".join(_word_table(content, k, order) for order in ORDERS)
    items = "".join(
        f'<li><bdi>{_text(content.titles[row])}</bdi> <span class="share">{100 * content.proportions[row, k]:.0f} %'
        "</span></li>"
        for row in content.best_documents[k]
    )
    return (
        f'<section class="topic" id="topic-{k + 1}"><h2>Topic {k + 1}: <bdi>{_text(content.name(k))}</bdi></h2>'
        f'<p class="facts">{100 * content.prevalence[k]:.1f} % of the corpus</p>{tables}'
        f'<h3>Documents with most of it</h3><ol class="documents">{items}</ol></section>\n'
    )


def _word_table(content: _PageContent, k: int, order: str) -> str:
    columns = content.best_words[order][k]
    inside, overall = content.components[k, columns], content.frequency[columns]
    full = max(inside.max(), overall.max(), 1e-300)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{_text(content.words[word])}</bdi></th><td>'
        f'<div class="bar" style="width:{100 * p / full:.1f}%"></div>'
        f'<div class="all" style="width:{100 * q / full:.1f}%"></div></td>'
        f'<td class="number">{_percent(p)}</td><td class="number">{_percent(q)}</td></tr>'
        for word, p, q in zip(columns, inside, overall, strict=True)
    )
    return (
        f'<table class="by-{order}"><caption>Words by {_ORDER_NAMES[order]}</caption>'
        '<thead><tr><th scope="col">word</th><td></td><th scope="col" class="number">in topic</th>'
        f'<th scope="col" class="number">overall</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-5 else "0 %"


def _search_data(content: _PageContent) -> dict[str, Any]:
    """Each word's three most likely topics, p(topic | word), and the titles on the page."""
    frequent = np.argsort(-content.frequency, kind="stable")
    joint = (content.components * content.prevalence[:, None])[:, frequent]
    likely = np.argsort(-joint, axis=0, kind="stable")[:3].T
    shares = joint / np.maximum(joint.sum(axis=0), 1e-300)
    words = [
        [content.words[word], [[int(k), round(float(shares[k, column]), 3)] for k in best]]
        for column, (word, best) in enumerate(zip(frequent, likely, strict=True))
    ]
    return {"words": words, "topics": [[content.titles[row] for row in rows] for rows in content.best_documents]}


def _json(value: Any) -> str:
    """JSON that no browser could take for the end of a script, or for markup."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean(text: str) -> str:
    """Remove what a page cannot hold: control characters and halves of characters."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else " " for letter in valid)


def _text(text: str) -> str:
    return escape(_clean(text), quote=True)


def _resource(name: str) -> str:
    return files("thalweg.topics").joinpath(name).read_text(encoding="utf-8")

"""The page of topics: it says what the functions say, needs nothing else, and nothing in the words can hurt it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from thalweg.topics import top_documents, top_words, topic_browser
from thalweg.topics.layout import separate_discs, topic_distances, topic_map

RNG = np.random.default_rng(0)
TOPICS = RNG.dirichlet(np.full(30, 0.2), size=4)
WORDS = [f"word{i}" for i in range(30)]
SHARES = RNG.dirichlet(np.full(4, 0.5), size=25)
COUNTS = np.stack([RNG.multinomial(40, row @ TOPICS) for row in SHARES])
HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--<script>",
    "' onload='alert(1)",
    "&lt;b&gt;",
    "a\u2028b\x00c\ud800d\u202ee",
]


class Reader(HTMLParser):
    """What a browser would see: elements, their attributes, and text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "input", "circle", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, text):
        self.texts.append((self.open[-1] if self.open else "", text))


@pytest.fixture(scope="module")
def page():
    return topic_browser(TOPICS, WORDS, SHARES, counts=COUNTS, documents=[f"Title {i}" for i in range(25)], n_words=5)


def sections(page):
    return re.findall(r'<section class="topic".*?</section>', page, re.S)


def test_the_page_is_well_formed_and_complete(page):
    reader = Reader(page)
    assert not reader.open
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] for tag, attributes in reader.elements if tag == "a"}
    assert targets == {f"#topic-{k}" for k in range(1, 5)}
    assert all(target[1:] in ids for target in targets)


def test_it_needs_no_network(page):
    reader = Reader(page)
    assert not [a for _, a in reader.elements if {"src", "srcset", "data", "action"} & a.keys()]
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page)


@pytest.mark.parametrize("by", ["probability", "frex", "lift"])
def test_words_and_documents_are_those_of_the_functions(page, by):
    wanted = top_words(TOPICS, WORDS, 5, by, frequency=COUNTS.sum(axis=0))
    for k, section in enumerate(sections(page)):
        table = re.search(rf'<table class="by-{by}".*?</table>', section, re.S)[0]
        assert re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', table) == wanted[k]
        listed = re.findall(r"<li><bdi>Title (\d+)</bdi>", section)
        assert [int(row) for row in listed] == top_documents(SHARES, k, 8).tolist()


def test_discs_have_the_area_of_their_topics(page):
    figure = page[: page.index("</svg>")]
    shares = COUNTS.sum(axis=1) @ SHARES
    radii = {int(k): float(r) for k, r in re.findall(r'href="#topic-(\d+)".*?r="([\d.]+)"', figure)}
    found = np.array([radii[k + 1] for k in range(4)]) ** 2
    np.testing.assert_allclose(found / found.max(), shares / shares.max(), rtol=0.02)


def test_the_search_box_knows_where_words_are(page):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    joint = TOPICS * (COUNTS.sum(axis=1) @ SHARES)[:, None]
    for word, shares in data["words"]:
        column = WORDS.index(word)
        given = joint[:, column] / joint[:, column].sum()
        assert [k for k, _ in shares] == np.argsort(-given, kind="stable")[:3].tolist()
        np.testing.assert_allclose([share for _, share in shares], np.sort(given)[::-1][:3], atol=1e-3)


def test_the_script_is_the_one_that_the_policy_allows(page):
    import base64
    import hashlib

    script = re.search(r"<script>(.*?)</script>", page, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_hostile_words_titles_and_headings_are_only_text():
    words = HOSTILE + WORDS[len(HOSTILE) :]
    topics = TOPICS.copy()
    topics[:, : len(HOSTILE)] += 1.0
    plain = topic_browser(topics, WORDS, SHARES, documents=["plain"] * 25, title="plain")
    made = topic_browser(topics, words, SHARES, documents=(HOSTILE * 5)[:25], title=HOSTILE[0])
    made.encode("utf-8")
    harmless, reader = Reader(plain), Reader(made)
    structure = lambda found: [(tag, sorted(attributes)) for tag, attributes in found.elements]
    assert structure(reader) == structure(harmless)
    assert made.count("<script") == plain.count("<script") == 2
    assert made.count("</script") == 2
    assert HOSTILE[0] in [text for tag, text in reader.texts if tag == "bdi"]
    assert not re.search("[\x00\u2028\ud800]", made)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', made, re.S)[1])
    assert HOSTILE[1] in [word for word, _ in data["words"]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_topics(count):
    made = topic_browser(TOPICS[:count], WORDS, np.full((3, count), 1 / count))
    assert len(sections(made)) == count
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", made, flags=re.S).lower()


def test_documents_without_titles_are_called_by_their_words():
    made = topic_browser(TOPICS, WORDS, SHARES, counts=COUNTS)
    row = top_documents(SHARES, 0, 1)[0]
    assert f"document {row + 1}: {WORDS[int(np.argmax(COUNTS[row]))]}" in made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocabulary": WORDS[:3]}, "vocabulary must have"),
        ({"proportions": SHARES[:, :2]}, "proportions must have a column"),
        ({"documents": ["one"]}, "documents must have a title"),
        ({"counts": COUNTS[:3]}, "counts must be of shape"),
        ({"n_words": 0}, "n_words must be"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        topic_browser(**({"components": TOPICS, "vocabulary": WORDS, "proportions": SHARES} | changes))


def test_distances_are_those_of_the_definition_and_the_map_keeps_them():
    found = topic_distances(TOPICS)
    p, q = TOPICS[0], TOPICS[1]
    m = (p + q) / 2
    kl = lambda a, b: np.sum(a[a > 0] * np.log2(a[a > 0] / b[a > 0]))
    np.testing.assert_allclose(found[0, 1] ** 2, (kl(p, m) + kl(q, m)) / 2, rtol=1e-9)
    three = topic_map(TOPICS[:3])  # three points fit into a plane
    apart = np.linalg.norm(three[:, None] - three[None], axis=2)
    np.testing.assert_allclose(apart, topic_distances(TOPICS[:3]), atol=1e-9)


def test_discs_do_not_hide_each_other():
    places = separate_discs(np.full((12, 2), 200.0), np.full(12, 25.0), (520, 420))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 100 * np.eye(12)
    assert apart.min() > 49  # two radii, up to a pixel
    assert (places > 25).all()
    assert (places < [495, 395]).all()

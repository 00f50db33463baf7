from html.parser import HTMLParser

import pytest

from thalweg.demo import Experiment, Section, plots, write_page

NASTY = "<script>alert('x')</script> & \"quotes\""
VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Collects tags, ids, links and text; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.texts, self.open = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.ids.append(attributes.get("id"))
        self.links += [attributes[name] for name in ("href", "src", "xlink:href") if name in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    def write(section):
        section.note(f"First {NASTY}\n\nSecond paragraph.")
        section.table("t", {NASTY: ["a", NASTY], "n": [1, 2.5]}, NASTY)
        with section.figure("f", NASTY) as ax:
            ax.plot([1, 2], label="a <b>")
            ax.set_title("x < y & z")
            plots.label_lines(ax)
        section.numbers("secret", {"value": 12345})

    return Experiment("toy", f"Toy {NASTY}", "Figure 1", write).run(
        tmp_path_factory.mktemp("report") / "toy", quick=True, seed=5
    )


@pytest.fixture(scope="module")
def page(section):
    path = section.folder.parent / "index.html"
    write_page(path, "Report", "Hello.\n\nWorld.", [section])
    return path.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert "img" not in parsed.tags
    assert all(link.startswith("#") for link in parsed.links)
    assert "url(http" not in page
    assert "@import" not in page


def test_all_text_is_escaped(page):
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6  # contents, heading, note, table header, cell, two captions
    assert Page(page).texts.count("Second paragraph.") == 1


def test_contents_link_to_sections(page):
    parsed = Page(page)
    assert "#toy" in parsed.links
    assert "toy" in parsed.ids


def test_plots_take_the_colour_of_the_page(page):
    assert "currentColor" in page
    assert plots.INK not in page
    assert page.count("<svg") == 1
    assert "<?xml" not in page


def test_ids_of_several_plots_do_not_clash(tmp_path):
    def write(section):
        for name in ("one", "two"):
            with section.figure(name, name) as ax:
                ax.plot([1, 2], marker="o")

    section = Experiment("toy", "Toy", "", write).run(tmp_path / "toy", quick=True, seed=0)
    ids = {}
    for name in ("one", "two"):
        text = (section.folder / f"{name}.svg").read_text()
        ids[name] = {part for part in Page(text[text.index("<svg") :]).ids if part and len(part) == 11}
    assert ids["one"]
    assert not ids["one"] & ids["two"]


def test_numbers_stay_in_their_files(page):
    assert "12345" not in page


def test_the_facts_of_the_run_are_given(page):
    assert "Figure 1 · quick size, seed 5, " in page


def test_a_page_works_on_phones_and_in_the_dark(page):
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_a_summary_stands_before_the_sections(section, tmp_path):
    summary = Section(tmp_path, quick=True, seed=0)
    summary.table("claims", {"claim": [NASTY], "verdict": ["holds"]}, "What was claimed.")
    write_page(tmp_path / "index.html", "Report", "", [section], summary=summary.items[-1])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert Page(text).ids.index("claims") < Page(text).ids.index("toy")
    assert "What was claimed." in text
    assert "<script" not in text

"""One self-contained page of HTML made from the folders that experiments leave behind."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from thalweg.demo.plots import INK
from thalweg.demo.section import Section

__all__ = ["write_page"]

_PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def write_page(
    path: Path, title: str, introduction: str, sections: Sequence[Section], *, summary: Mapping[str, Any] | None = None
) -> None:
    """Write a page of HTML: contents, then the prose, tables and plots of each section in order.

    Parameters
    ----------
    path
        The file; its folder is made if need be.
    title, introduction
        What stands at the head of the page.
    sections
        What experiments left behind.
    summary
        A table that stands before all sections: an item of a :class:`~thalweg.demo.Section`.

    Examples
    --------
    >>> import tempfile
    >>> page = Path(tempfile.mkdtemp()) / "index.html"
    >>> write_page(page, "Nothing yet", "No experiment was run.", [])
    >>> "<h1>Nothing yet</h1>" in page.read_text()
    True
    """
    page = _PAGE.substitute(
        title=escape(title),
        introduction=_paragraphs(introduction),
        contents="\n".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections),
        summary="" if summary is None else _summary(summary),
        sections="".join(map(_section, sections)),
        versions=escape(", ".join(sorted({section.version for section in sections}))),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _summary(table: Mapping[str, Any]) -> str:
    name = escape(table["name"])
    return f'<section id="{name}">\n<h2>{name.capitalize()}</h2>\n{_table(table)}</section>\n'


def _section(section: Section) -> str:
    size = "quick size" if section.quick else "full size"
    facts = f"{section.paper} · {size}, seed {section.seed}, {section.seconds:.1f} s"
    items = "".join(_item(section, item) for item in section.items)
    return (
        f'<section id="{escape(section.name)}">\n<h2>{escape(section.title)}</h2>\n'
        f'<p class="facts">{escape(facts)}</p>\n{items}</section>\n'
    )


def _item(section: Section, item: dict[str, Any]) -> str:
    match item["kind"]:
        case "note":
            return _paragraphs(item["text"])
        case "table":
            return _table(item)
        case "figure":
            return _figure((section.folder / f"{item['name']}.svg").read_text(encoding="utf-8"), item["caption"])
        case _:  # raw numbers stay in their files
            return ""


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part.strip())}</p>\n" for part in re.split(r"\n\s*\n", text) if part.strip())


def _table(item: Mapping[str, Any]) -> str:
    classes = [' class="number"' if numeric else "" for numeric in item["numeric"]]
    titles = zip(item["header"], classes, strict=True)
    header = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in titles)
    rows = "\n".join(
        "<tr>" + "".join(f"<td{k}>{escape(text)}</td>" for text, k in zip(row, classes, strict=True)) + "</tr>"
        for row in item["rows"]
    )
    return (
        f"<figure><figcaption>{escape(item['caption'])}</figcaption>\n"
        f'<div class="scroll"><table>\n<thead><tr>{header}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div></figure>\n"
    )


def _figure(svg: str, caption: str) -> str:
    """Put the drawing itself into the page, so that its text and axes take the colour of the page's text."""
    drawing = svg[svg.index("<svg") :].replace(INK, "currentColor")
    label = f'<svg role="img" aria-label="{escape(caption)}"'
    return f"<figure>{drawing.replace('<svg', label, 1)}<figcaption>{escape(caption)}</figcaption></figure>\n"

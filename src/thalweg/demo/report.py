"""One self-contained page of HTML made from the folders that experiments leave behind."""

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from thalweg.experiments.claims import gathered
from thalweg.experiments.plots import INK
from thalweg.experiments.section import Section

_CSS = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d2021; --soft: #5f6669; --line: #d9dcdd;
        --accent: #0b6aa6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16191b; --ink: #e4e6e6; --soft: #a0a8ab; --line: #363c3f; --accent: #6fbaf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 48rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 0; }
a { color: var(--accent); }
nav { border-block: 1px solid var(--line); margin: 1.5rem 0; padding: .75rem 0; }
nav ol { margin: 0; padding-left: 1.5rem; }
section { margin-top: 3rem; }
.facts, footer { color: var(--soft); font-size: .85rem; }
.facts { margin: .25rem 0 1rem; }
figure { margin: 1.5rem 0; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; margin: .4rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 60%; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; }
footer { margin-top: 4rem; border-top: 1px solid var(--line); padding-top: .75rem; }
"""


def build(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """Return the page: a table of contents and, for each section, its prose, tables and plots in order."""
    contents = "\n".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections)
    versions = ", ".join(sorted({section.version for section in sections}))
    return f"""<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
{_paragraphs(introduction)}</header>
<nav aria-label="Contents"><ol>
{contents}
</ol></nav>
<main>
{_claims(sections)}{"".join(map(_section, sections))}</main>
<footer>Made by Thalweg {escape(versions)}. The numbers behind each section are in files beside this page.</footer>
</body>
</html>
"""


def write(path: Path, title: str, introduction: str, sections: Sequence[Section]) -> None:
    """Write the page to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build(title, introduction, sections), encoding="utf-8")


def _claims(sections: Sequence[Section]) -> str:
    """One table of the claims of several sections."""
    columns = gathered(sections)
    if len(sections) == 1 or not columns["claim"]:
        return ""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    counts = Counter(columns["verdict"])
    caption = "What the papers say: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    item = {"caption": caption, "header": list(columns), "rows": rows, "numeric": [False] * len(columns)}
    return f'<section id="claims">\n<h2>Claims</h2>\n{_table(item)}</section>\n'


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


def _table(item: dict[str, Any]) -> str:
    classes = [' class="number"' if numeric else "" for numeric in item["numeric"]]
    header = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in zip(item["header"], classes, strict=True)
    )
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

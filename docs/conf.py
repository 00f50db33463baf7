"""Configuration of Sphinx. What is generated goes to ``api/`` and ``gallery/``, which git ignores."""

from collections import defaultdict
from pathlib import Path

import thalweg

project = "Thalweg"
author = "The Thalweg developers"
copyright = author
release = version = thalweg.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "api/pairs.md", "gallery/**/*.ipynb", "gallery/**/*.py"]
templates_path = ["_templates"]
language = "en_GB"

html_theme = "furo"
html_title = f"Thalweg {release}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6aa6", "color-brand-content": "#0b6aa6"},
    "dark_css_variables": {"color-brand-primary": "#6fbaf0", "color-brand-content": "#6fbaf0"},
}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"  # jaxtyping's shapes are long; the numpydoc sections say what is meant
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# No inventories: the build must not depend on the network.
intersphinx_mapping: dict[str, tuple[str, None]] = {}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",  # other programs there are for reading, not for the gallery
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
}


def write_pairs(app) -> None:
    """Write the table of pairs (D, h) with a closed form, from the register that the library itself uses."""
    from thalweg.descent import closed_forms

    terms = defaultdict(list)
    for divergence, term, note in closed_forms():
        terms[divergence].append(note or f"`{term}`")
    rows = [f"| `{divergence}` | {', '.join(dict.fromkeys(names))} |" for divergence, names in terms.items()]
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    (folder / "pairs.md").write_text(
        "\n".join(["| divergence | terms |", "| --- | --- |", *rows, ""]), encoding="utf-8"
    )


def escape_bars(app, what, name, obj, options, lines) -> None:
    """Keep |x| an absolute value: reStructuredText would look for a substitution of that name."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("``")
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[i] = "``".join(parts)


def setup(app) -> None:
    app.connect("builder-inited", write_pairs)
    app.connect("autodoc-process-docstring", escape_bars, priority=400)  # before numpydoc

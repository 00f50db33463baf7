"""Every public name has a docstring and a place on an API page."""

import importlib
import inspect
import pkgutil
import re
import runpy
from pathlib import Path

import jax
import pytest

import thalweg

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def public_packages():
    """The packages whose ``__all__`` is their face; a module's own ``__all__`` is part of its package's."""
    names = [module.name for module in pkgutil.iter_modules(thalweg.__path__, "thalweg.") if module.ispkg]
    return [name for name in names if hasattr(importlib.import_module(name), "__all__")]


PUBLIC = [(name, found) for name in public_packages() for found in importlib.import_module(name).__all__]


def documented():
    """The full names on the API pages."""
    found = set()
    for page in REFERENCE.glob("*.rst"):
        module = None
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif module and (match := re.fullmatch(r"   ([A-Za-z_]\w*)", line)):
                found.add(f"{module}.{match[1]}")
    return found


def test_public_names_have_docstrings_of_their_own_with_an_example():
    for package, name in PUBLIC:
        thing = getattr(importlib.import_module(package), name)
        # A class without a docstring would otherwise show that of its base.
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert text, name
        assert ">>>" in text, f"an example of {name} is wanted"


def test_public_methods_have_docstrings():
    for package, name in PUBLIC:
        thing = getattr(importlib.import_module(package), name)
        for method, found in vars(thing).items() if inspect.isclass(thing) else ():
            if not method.startswith("_") and inspect.isfunction(found):
                assert inspect.getdoc(getattr(thing, method)), f"{name}.{method}"


def test_public_names_are_on_an_api_page():
    missing = sorted({f"{package}.{name}" for package, name in PUBLIC} - documented())
    assert not missing, f"add to docs/reference: {missing}"


def test_the_api_pages_name_nothing_that_is_gone():
    for name in sorted(documented()):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("plot_*.py")), ids=lambda path: path.stem)
def test_examples_run(example, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users run them
        runpy.run_path(str(example))
    assert plt.get_fignums()
    plt.close("all")

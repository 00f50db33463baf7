import csv
import json

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.errors import FileFormatError
from thalweg.experiments import plots, registry
from thalweg.experiments.section import Run, Section


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_EXPERIMENTS", {})
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda _: [])


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, quick=True, seed=3)


def register(name, **options):
    return registry.experiment(name, title=name.title(), paper="Table 1", **options)


def test_experiments_come_in_order():
    for name, order in [("c", 2), ("b", 1), ("a", 2)]:
        register(name, order=order)(lambda run: None)
    assert [found.name for found in registry.experiments()] == ["b", "c", "a"]


def test_the_decorated_function_stays_itself():
    def function(run):
        pass

    assert register("a")(function) is function


def test_one_name_is_registered_once():
    register("a")(lambda run: None)
    with pytest.raises(ValueError, match="an experiment called 'a' is registered already"):
        register("a")(lambda run: None)


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", "-a", "a.b"])
def test_names_are_fit_for_files(name, run):
    with pytest.raises(ValueError, match="letters, digits"):
        register(name)
    with pytest.raises(ValueError, match="letters, digits"):
        run.numbers(name, {})


def test_unknown_names_get_close_matches():
    register("chebyshev-error")(lambda run: None)
    with pytest.raises(registry.UnknownExperimentError, match="did you mean 'chebyshev-error'"):
        registry.find("chebychev-error")
    with pytest.raises(registry.UnknownExperimentError, match="--list"):
        registry.find("zzz")
    assert registry.find("chebyshev-error").title == "Chebyshev-Error"


def test_modules_of_the_package_are_imported_but_not_the_machinery(monkeypatch):
    imported = []
    monkeypatch.undo()
    names = ["_private", "demo_lasso", "plots", "registry", "report", "section"]
    modules = [type("Module", (), {"name": name}) for name in names]
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda _: modules)
    real = registry.importlib.import_module
    monkeypatch.setattr(
        registry.importlib,
        "import_module",
        lambda name: real(name) if name == "thalweg.experiments" else imported.append(name),
    )
    registry.experiments()
    assert imported == ["thalweg.experiments.demo_lasso"]


def test_execute_writes_everything_into_the_folder(tmp_path):
    @register("toy")
    def toy(run):
        assert (run.quick, run.seed) == (False, 7)
        run.note("Some words.")
        run.table("errors", {"step": [1, 2], "error": [0.5, 0.25]}, "Errors.")
        fig, ax = plots.figure()
        ax.plot([1, 2])
        run.figure("plot", fig, "A plot.")
        run.numbers("raw", {"a": 1})

    section = registry.execute(registry.find("toy"), tmp_path / "new" / "toy", quick=False, seed=7)
    assert sorted(path.name for path in section.folder.iterdir()) == [
        *("errors.csv", "errors.txt", "index.json", "plot.png", "plot.svg", "raw.json")
    ]
    assert [item["kind"] for item in section.items] == ["note", "table", "figure", "numbers"]
    assert Section.read(section.folder) == section
    assert section.seconds > 0
    assert (section.folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_broken_index_is_refused(tmp_path):
    (tmp_path / "index.json").write_text('{"name": 1}')
    with pytest.raises(FileFormatError, match=r"index\.json: not the index of an experiment"):
        Section.read(tmp_path)


def test_tables_keep_all_digits_in_csv_and_few_in_text(run, tmp_path):
    columns = {"method": ["GD", "a, b"], "gap": np.array([1 / 3, 2e-9]), "n": jnp.arange(2)}
    run.table("final", columns, "Gaps.")
    with open(tmp_path / "final.csv", newline="") as file:
        assert list(csv.reader(file)) == [["method", "gap", "n"], ["GD", repr(1 / 3), "0"], ["a, b", "2e-09", "1"]]
    assert (tmp_path / "final.txt").read_text() == (
        "Gaps.\n\nmethod     gap  n\n------  ------  -\nGD      0.3333  0\na, b     2e-09  1\n"
    )
    assert run.items[0]["numeric"] == [False, True, True]


def test_columns_of_different_lengths_are_refused(run):
    with pytest.raises(ValueError, match=r"one length, found \{'a': 1, 'b': 2\}"):
        run.table("t", {"a": [1], "b": [1, 2]}, "")


def test_a_name_is_used_once_for_each_kind(run):
    run.numbers("a", {})
    run.table("a", {"x": []}, "")
    with pytest.raises(ValueError, match="this run has a numbers called 'a' already"):
        run.numbers("a", {})


def test_numbers_are_strict_json(run, tmp_path):
    values = {"x": np.float32(0.5), "k": jnp.arange(2), "bad": [np.nan, -np.inf], "s": {"t": ("u", None, True)}}
    run.numbers("raw", values)
    text = (tmp_path / "raw.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        **{"x": 0.5, "k": [0, 1], "bad": ["nan", "-inf"]},
        "s": {"t": ["u", None, True]},
    }


def test_figures_are_reproducible_to_the_byte(tmp_path):
    for name in ("first", "second"):
        with plots.style():
            fig, ax = plots.figure()
            ax.plot([1, 2], label="a")
            plots.label_lines(ax)
            (tmp_path / name).mkdir()
            plots.save(fig, tmp_path / name / "plot")
    assert (tmp_path / "first/plot.svg").read_bytes() == (tmp_path / "second/plot.svg").read_bytes()


def test_the_style_is_left_behind():
    before = plots.matplotlib.rcParams["text.color"]
    with plots.style():
        assert plots.matplotlib.rcParams["text.color"] == plots.INK
    assert plots.matplotlib.rcParams["text.color"] == before


@pytest.mark.parametrize("ends", [[1.0], [1.0, 1.0, 1.0], [1e-9, 1e-3, 1.0], [float("nan"), 1.0], []])
def test_labels_stand_at_the_ends_of_their_lines_and_apart(ends):
    _, ax = plots.figure()
    for i, end in enumerate(ends):
        ax.semilogy([1.0, end], label=f"line {i}")
    plots.label_lines(ax, gap=0.1)
    heights = sorted(text.get_position()[1] for text in ax.texts)
    assert {text.get_text() for text in ax.texts} == {f"line {i}" for i in range(len(ends))}
    assert np.all(np.diff(heights) >= 0.1 - 1e-12)
    assert all(-0.2 <= height <= 1 for height in heights)


def test_several_columns_give_several_axes():
    _, axes = plots.figure(2)
    assert axes.shape == (2,)

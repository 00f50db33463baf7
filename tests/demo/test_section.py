import csv
import json

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.demo import Experiment, Section, experiment, plots


@pytest.fixture
def section(tmp_path):
    return Section(tmp_path, quick=True, seed=3)


def test_a_decorated_function_is_an_experiment():
    @experiment("a", title="A", paper="Table 1")
    def halving(section):
        section.note("Half of it.")

    assert (halving.name, halving.title, halving.paper) == ("a", "A", "Table 1")


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", "-a", "a.b"])
def test_names_are_fit_for_files(name, section):
    with pytest.raises(ValueError, match="letters, digits"):
        Experiment(name, "", "", lambda section: None)
    with pytest.raises(ValueError, match="letters, digits"):
        section.numbers(name, {})


def test_a_run_writes_everything_into_the_folder(tmp_path):
    def write(section):
        assert (section.quick, section.seed) == (False, 7)
        section.note("Some words.")
        section.table("errors", {"step": [1, 2], "error": [0.5, 0.25]}, "Errors.")
        with section.figure("plot", "A plot.") as axes:
            axes.plot([1, 2])
        section.numbers("raw", {"a": 1})

    section = Experiment("toy", "Toy", "Table 1", write).run(tmp_path / "new" / "toy", quick=False, seed=7)
    assert sorted(path.name for path in section.folder.iterdir()) == [
        *("errors.csv", "errors.txt", "index.json", "plot.png", "plot.svg", "raw.json")
    ]
    assert [item["kind"] for item in section.items] == ["note", "table", "figure", "numbers"]
    index = json.loads((section.folder / "index.json").read_text())
    assert index == {key: value for key, value in vars(section).items() if key != "folder"}
    assert section.seconds > 0
    assert (section.folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_tables_keep_all_digits_in_csv_and_few_in_text(section, tmp_path):
    columns = {"method": ["GD", "a, b"], "gap": np.array([1 / 3, 2e-9]), "n": jnp.arange(2)}
    section.table("final", columns, "Gaps.")
    with open(tmp_path / "final.csv", newline="") as file:
        assert list(csv.reader(file)) == [["method", "gap", "n"], ["GD", repr(1 / 3), "0"], ["a, b", "2e-09", "1"]]
    assert (tmp_path / "final.txt").read_text() == (
        "Gaps.\n\nmethod     gap  n\n------  ------  -\nGD      0.3333  0\na, b     2e-09  1\n"
    )
    assert section.items[0]["numeric"] == [False, True, True]


def test_columns_of_different_lengths_are_refused(section):
    with pytest.raises(ValueError, match=r"one length, found \{'a': 1, 'b': 2\}"):
        section.table("t", {"a": [1], "b": [1, 2]}, "")


def test_a_name_is_used_once_for_each_kind(section):
    section.numbers("a", {})
    section.table("a", {"x": []}, "")
    with pytest.raises(ValueError, match="this section has a numbers called 'a' already"):
        section.numbers("a", {})


def test_numbers_are_strict_json(section, tmp_path):
    values = {"x": np.float32(0.5), "k": jnp.arange(2), "bad": [np.nan, -np.inf], "s": {"t": ("u", None, True)}}
    section.numbers("raw", values)
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


def test_several_columns_give_several_axes(section):
    with section.figure("plot", "", columns=2) as axes:
        assert axes.shape == (2,)


def test_a_map_has_the_values_where_they_belong():
    grid = plots.square_grid([0, 0], [1, 3], 4)
    _, axes = plots.figure()
    plots.draw_map(axes, grid, grid[:, 1], levels=[0, 1, 2, 3], colours="viridis", title="height")
    assert axes.get_title() == "height"
    np.testing.assert_allclose(axes.get_xlim(), (0, 1))
    np.testing.assert_allclose(axes.get_ylim(), (0, 3))

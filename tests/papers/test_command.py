"""The command ``python -m papers``."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from papers.__main__ import main
from papers.catalogue import EXPERIMENTS
from papers.claims import Claim, show_claims
from thalweg.demo import Experiment
from thalweg.errors import DataNotFoundError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(monkeypatch):
    """Two tiny figures instead of the real ones; the list of what was run."""
    done = []

    def write(section, name):
        done.append((name, section.quick, section.seed))
        section.table("result", {"method": ["GD [x]"], "gap": [0.125]}, f"Result of {name}.")

    def write_claims(section):
        claims = [Claim("it grows", lambda n: n > 1, str), Claim("it shrinks", lambda n: n < 1)]
        show_claims(section, claims, 2)

    figures = (
        Experiment("first", "The [first]", "Figure 1", lambda section: write(section, "first")),
        Experiment("second", "The second", "Table 3", write_claims),
    )
    monkeypatch.setattr("papers.catalogue.EXPERIMENTS", figures)
    return done


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_one_figure_is_run(runs, invoke, tmp_path):
    assert invoke("first").exit_code == 0
    result = invoke("first", "--full", "--seed", "4", "--output", "out")
    assert result.exit_code == 0, result.output
    assert runs == [("first", True, 0), ("first", False, 4)]
    assert "Report: out/first/index.html" in result.output
    assert "GD [x]" in result.output
    assert (tmp_path / "reproductions" / "first" / "index.json").exists()
    assert "full size, seed 4" in (tmp_path / "out" / "first" / "index.html").read_text(encoding="utf-8")


def test_all_are_one_report_with_one_table_of_claims(runs, invoke, tmp_path):
    result = invoke("all", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert runs == [("first", True, 3)]
    page = (tmp_path / "reproductions" / "index.html").read_text(encoding="utf-8")
    assert page.index('id="claims"') < page.index('id="first"') < page.index('id="second"')
    assert "What the papers say: 1 holds, 1 does not hold." in page
    rows = (tmp_path / "reproductions" / "claims.csv").read_text(encoding="utf-8").splitlines()
    assert rows == ["experiment,claim,verdict,seen", "second,it grows,holds,2", "second,it shrinks,does not hold,"]


def test_a_list_has_names_titles_and_papers(runs, invoke):
    result = invoke("--list")
    assert result.exit_code == 0
    for text in ("first", "The [first]", "Figure 1", "second", "Table 3"):
        assert text in result.output
    assert runs == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frist",), "no figure or table is called 'frist'; did you mean 'first'?"),
        (("zzz",), "no figure or table is called 'zzz'; --list lists them"),
        ((), 'give the NAME of a figure or table, "all", or --list'),
        (("first", "--seed", "-1"), "--seed"),
        (("first", "--seed", str(2**64)), "--seed"),
    ],
)
def test_mistakes_in_the_command_end_with_code_2(runs, invoke, arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["first", "all"])
def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(runs, invoke, tmp_path, name):
    (tmp_path / "file").write_text("")
    result = invoke(name, "--output", str(tmp_path / "file" / "out"))
    assert result.exit_code == 2
    assert "cannot be made: not a directory" in " ".join(result.output.split())
    assert runs == []


@pytest.mark.parametrize("kind", [DataNotFoundError, FileNotFoundError])
def test_errors_of_the_user_are_sentences(invoke, monkeypatch, kind):
    def fail(section):
        raise kind("put the file there")

    monkeypatch.setattr("papers.catalogue.EXPERIMENTS", (Experiment("failing", "", "", fail),))
    result = invoke("failing")
    assert result.exit_code == 1
    assert "Error: put the file there" in result.output


def test_names_are_unique():
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)


def test_python_m_papers_is_the_command():
    command = [sys.executable, "-m", "papers", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.startswith("Usage: python -m papers [OPTIONS] [NAME]")

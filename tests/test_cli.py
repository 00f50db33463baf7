import signal
import subprocess
import sys

import jax
import pytest
from click.testing import CliRunner

from thalweg import __version__
from thalweg.cli import main
from thalweg.demo import Experiment
from thalweg.demo.sections import SECTIONS
from thalweg.errors import DataNotFoundError
from thalweg.runs import Run


def write_tiny_section(section):
    section.table("result", {"method": ["GD [x]"], "gap": [0.125]}, "Result.")
    with section.figure("plot", "Plot.") as axes:
        axes.plot([1, 2])


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(main, arguments)


@pytest.fixture
def demo_of(invoke, monkeypatch):
    """A function that runs the demo with these functions for sections."""

    def run(*functions, arguments=()):
        sections = [Experiment(f"name{i}", f"Title [{i}]", "", function) for i, function in enumerate(functions)]
        monkeypatch.setattr("thalweg.demo.sections.SECTIONS", sections)
        return invoke("demo", *arguments)

    return run


def test_the_demo_has_its_sections_in_order():
    assert [section.name for section in SECTIONS] == [
        *("demo-lasso", "demo-logistic", "demo-gp", "demo-digits"),
        *("demo-regression", "demo-topics", "demo-completion"),
    ]


def test_demo_runs_its_sections_and_writes_the_report(demo_of, tmp_path):
    result = demo_of(write_tiny_section, write_tiny_section)
    assert result.exit_code == 0, result.output
    assert "Report: thalweg-report/index.html" in result.output
    assert "1/2  Title [0]" in result.output
    assert "GD [x]" in result.output
    assert "0.125" in result.output
    page = (tmp_path / "thalweg-report" / "index.html").read_text(encoding="utf-8")
    assert page.index("Title [0]") < page.index("Title [1]")
    assert (tmp_path / "thalweg-report" / "name0" / "result.csv").exists()


def test_demo_opens_the_report_on_request(demo_of, monkeypatch):
    opened = []
    monkeypatch.setattr("click.launch", opened.append)
    assert demo_of(write_tiny_section, arguments=("--output", "here", "--open")).exit_code == 0
    assert opened == ["here/index.html"]


def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(demo_of, tmp_path):
    (tmp_path / "file").write_text("")
    ran = []
    result = demo_of(ran.append, arguments=("--output", str(tmp_path / "file" / "out")))
    assert result.exit_code == 2
    assert "Invalid value for --output: the folder" in result.output
    assert "cannot be made: not a directory" in " ".join(result.output.split())
    assert "Errno" not in result.output
    assert ran == []


@pytest.mark.parametrize("kind", [DataNotFoundError, FileNotFoundError, PermissionError])
def test_errors_of_the_user_are_sentences(demo_of, kind):
    def fail(section):
        raise kind("put the file there")

    result = demo_of(fail)
    assert result.exit_code == 1
    assert "Error: put the file there" in result.output
    assert "Traceback" not in result.output


def test_errors_of_ours_are_not_hidden(demo_of):
    def fail(section):
        raise ZeroDivisionError("a bug")

    assert isinstance(demo_of(fail).exception, ZeroDivisionError)


def test_an_interrupt_ends_the_command_though_a_fit_would_end_alone(demo_of):
    after = []

    def interrupted_fit(section):
        with Run("a fit") as run:
            run.keep("its result")
            signal.raise_signal(signal.SIGINT)
        after.append("went on")

    result = demo_of(interrupted_fit)
    assert (result.exit_code, after) == (1, [])
    assert "Aborted!" in result.output


def test_demo_without_matplotlib_says_in_one_line_how_to_install_it(tmp_path):
    program = "import sys; sys.modules['matplotlib'] = None; from thalweg.cli import main; main(['demo'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert (ran.stdout, ran.stderr) == ("", "Error: matplotlib is not installed: pip install 'thalweg[report]'\n")
    assert list(tmp_path.iterdir()) == []


def test_info(invoke, monkeypatch, tmp_path):
    monkeypatch.setenv("THALWEG_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sonar.npz").write_bytes(b"")
    result = invoke("info")
    assert result.exit_code == 0, result.output
    for text in (__version__, "jax", str(jax.devices()[0]), "float64  ", "mine", "sonar"):
        assert text in result.output


def test_version(invoke):
    assert __version__ in invoke("--version").output


def test_the_commands_are_demo_and_info(invoke):
    output = invoke("--help").output
    assert [line.split()[0] for line in output[output.index("Commands:") :].splitlines()[1:] if line] == [
        "demo",
        "info",
    ]
    unknown = invoke("demonstrate")
    assert unknown.exit_code == 2
    assert "No such command" in unknown.output


def test_python_m_thalweg_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "thalweg", "--help"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("Usage: thalweg [OPTIONS] COMMAND")

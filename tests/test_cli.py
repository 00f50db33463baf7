import contextlib
import signal
import subprocess
import sys

import jax
import pytest
from click.testing import CliRunner

from thalweg import __version__
from thalweg.cli import main
from thalweg.errors import DataNotFoundError
from thalweg.experiments import claims, plots, registry
from thalweg.experiments.claims import Claim


@pytest.fixture
def runs(monkeypatch):
    """Three tiny experiments instead of the real ones; the list of what was run."""
    monkeypatch.setattr(registry, "_EXPERIMENTS", {})
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda _: [])
    done = []

    def describe(run, name):
        done.append((name, run.quick, run.seed))
        run.table("result", {"method": ["GD [x]"], "gap": [0.125]}, f"Result of {name}.")
        fig, ax = plots.figure()
        ax.plot([1, 2])
        run.figure("plot", fig, "Plot.")

    @registry.experiment("second", title="The second", paper="Figure 2", demo=True, order=2)
    def second(run):
        describe(run, "second")

    @registry.experiment("first", title="The [first]", paper="Figure 1", demo=True, order=1)
    def first(run):
        describe(run, "first")

    @registry.experiment("extra", title="Not in the demo", paper="Table 3")
    def extra(run):
        describe(run, "extra")

    return done


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_demo_runs_the_flagged_experiments_and_writes_the_report(runs, invoke, tmp_path):
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    assert runs == [("first", True, 0), ("second", True, 0)]
    assert "Report: thalweg-report/index.html" in result.output
    assert "1/2  The [first]" in result.output
    assert "GD [x]" in result.output
    assert "0.125" in result.output
    page = (tmp_path / "thalweg-report" / "index.html").read_text(encoding="utf-8")
    assert page.index("The [first]") < page.index("The second")
    assert (tmp_path / "thalweg-report" / "first" / "result.csv").exists()


def test_demo_opens_the_report_on_request(runs, invoke, monkeypatch):
    opened = []
    monkeypatch.setattr("click.launch", opened.append)
    assert invoke("demo", "--output", "here", "--open").exit_code == 0
    assert opened == ["here/index.html"]


def test_reproduce_runs_one_experiment(runs, invoke, tmp_path):
    assert invoke("reproduce", "extra").exit_code == 0
    result = invoke("reproduce", "extra", "--full", "--seed", "4", "--output", "out")
    assert result.exit_code == 0, result.output
    assert runs == [("extra", True, 0), ("extra", False, 4)]
    assert "Report: out/extra/index.html" in result.output
    assert (tmp_path / "reproductions" / "extra" / "index.json").exists()
    assert "full size, seed 4" in (tmp_path / "out" / "extra" / "index.html").read_text(encoding="utf-8")


def test_reproduce_all_writes_one_report_with_one_table_of_claims(runs, invoke, tmp_path):
    @registry.experiment("more", title="More", paper="Figure 4")
    def more(run):
        claims.show(run, [Claim("it grows", lambda n: n > 1, str), Claim("it shrinks", lambda n: n < 1)], 2)

    result = invoke("reproduce", "all", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert runs == [("extra", True, 3)]  # the demo is no paper's
    page = (tmp_path / "reproductions" / "index.html").read_text(encoding="utf-8")
    assert page.index('id="claims"') < page.index('id="extra"') < page.index('id="more"')
    assert "What the papers say: 1 holds, 1 does not hold." in page
    rows = (tmp_path / "reproductions" / "claims.csv").read_text(encoding="utf-8").splitlines()
    assert rows == ["experiment,claim,verdict,seen", "more,it grows,holds,2", "more,it shrinks,does not hold,"]


def test_reproduce_lists(runs, invoke):
    result = invoke("reproduce", "--list")
    assert result.exit_code == 0
    for text in ("first", "The [first]", "Figure 1", "extra", "Table 3"):
        assert text in result.output
    assert runs == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "frist"), "no experiment is called 'frist'; did you mean 'first'?"),
        (("reproduce",), 'give the NAME of an experiment, "all", or --list'),
        (("reproduce", "first", "--seed", "-1"), "--seed"),
        (("reproduce", "first", "--seed", str(2**64)), "--seed"),
        (("demonstrate",), "No such command"),
    ],
)
def test_mistakes_in_the_command_end_with_code_2(runs, invoke, arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [("reproduce", "first"), ("reproduce", "all"), ("demo",)])
def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(runs, invoke, tmp_path, arguments):
    (tmp_path / "file").write_text("")
    result = invoke(*arguments, "--output", str(tmp_path / "file" / "out"))
    assert result.exit_code == 2
    assert "Invalid value for --output: the folder" in result.output
    assert "cannot be made: not a directory" in " ".join(result.output.split())
    assert "Errno" not in result.output
    assert runs == []


@pytest.mark.parametrize("kind", [DataNotFoundError, FileNotFoundError, PermissionError])
def test_errors_of_the_user_are_sentences(runs, invoke, kind):
    @registry.experiment("failing", title="Failing", paper="")
    def failing(run):
        raise kind("put the file there")

    result = invoke("reproduce", "failing")
    assert result.exit_code == 1
    assert "Error: put the file there" in result.output
    assert "Traceback" not in result.output


def test_an_interrupt_ends_the_command_though_a_fit_would_end_alone(runs, invoke):
    after = []

    @registry.experiment("patient", title="Patient", paper="")
    def patient(run):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        after.append("went on")

    before = signal.getsignal(signal.SIGINT)
    result = invoke("reproduce", "patient")
    assert (result.exit_code, after) == (1, [])
    assert "Aborted!" in result.output
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_of_ours_are_not_hidden(runs, invoke):
    @registry.experiment("failing", title="Failing", paper="")
    def failing(run):
        raise ZeroDivisionError("a bug")

    assert isinstance(invoke("reproduce", "failing").exception, ZeroDivisionError)


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


def test_python_m_thalweg_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "thalweg", "--help"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("Usage: thalweg [OPTIONS] COMMAND")

"""The command ``thalweg``."""

import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thalweg import __version__
from thalweg.errors import ThalwegError

if TYPE_CHECKING:
    from thalweg.experiments.registry import Experiment
    from thalweg.experiments.section import Section

# What only one command needs (JAX, Matplotlib, rich, the experiments) is imported by that command: --help is instant.


class _Commands(click.Group):
    """Commands whose users' errors end with a sentence, not with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ThalwegError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands)
@click.version_option(__version__, package_name="thalweg")
def main() -> None:
    """Descent with cheap unbiased gradients and steps that respect geometry."""


@main.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("thalweg-report"),
    show_default=True,
    help="Folder for the report and what is behind it.",
)
@click.option("--open", "show", is_flag=True, help="Open the report in a browser.")
def demo(output: Path, show: bool) -> None:
    """Run the main methods on data that come with scikit-learn; write one HTML report."""
    from thalweg.experiments.registry import experiments

    chosen = [found for found in experiments() if found.demo]
    introduction = "What the library does, on small data, in about a minute: each section is one experiment."
    page = _run(chosen, output, output / "index.html", "Thalweg: a demonstration", introduction, quick=True, seed=0)
    if show:
        click.launch(str(page))


@main.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the experiments and stop.")
@click.option("--quick/--full", default=True, show_default=True, help="A size for seconds, or that of the paper.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproductions"),
    show_default=True,
    help="The results go into the folder NAME within this one.",
)
def reproduce(name: str | None, listing: bool, quick: bool, seed: int, output: Path) -> None:
    """Reproduce the figure or table NAME of a paper; "all" of them, in one report with one table of claims."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from thalweg.experiments.registry import UnknownExperimentError, experiments, find

    if listing:
        table = Table("name", "title", "paper")
        for found in experiments():
            table.add_row(found.name, Text(found.title), Text(found.paper))
        Console().print(table)
        return
    if name is None:
        raise click.UsageError('give the NAME of an experiment, "all", or --list')
    if name == "all":
        chosen = [found for found in experiments() if not found.demo]
        _run(chosen, output, output / "index.html", "Four papers, reproduced", _ALL, quick=quick, seed=seed)
        return
    try:
        one = find(name)
    except UnknownExperimentError as error:
        raise click.UsageError(str(error)) from error
    _run([one], output, output / name / "index.html", one.title, "", quick=quick, seed=seed)


_ALL = (
    "Every figure and table of the papers, and what they say of them: a claim holds, does not hold, or cannot be "
    "tested at this size."
)


@main.command()
def info() -> None:
    """Show versions, devices, precision, and which data sets are here."""
    import jax
    import jaxlib
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from thalweg import data

    here = [name for name in data.list() if data.locate(name)]
    facts = {
        "thalweg": __version__,
        "python": platform.python_version(),
        "jax": f"{jax.__version__} (jaxlib {jaxlib.__version__})",
        "devices": ", ".join(str(device) for device in jax.devices()),
        "float64": "on"
        if jax.config.read("jax_enable_x64")
        else "off (JAX's default; parts that need it switch it on)",
        "data folders": "\n".join(map(str, data.folders())),
        "data sets": f"{len(here)} of {len(data.list())} here" + (": " + ", ".join(here) if here else ""),
    }
    table = Table.grid(padding=(0, 2))
    for key, text in facts.items():
        table.add_row(key, Text(text))
    Console().print(table)


def _run(
    chosen: "list[Experiment]", output: Path, page: Path, title: str, introduction: str, *, quick: bool, seed: int
) -> Path:
    """Run experiments one by one, show their tables, write the page, and say where it is."""
    from rich.console import Console
    from rich.text import Text

    from thalweg.experiments import report
    from thalweg.experiments.registry import execute

    _make_folders([output / found.name for found in chosen])
    console = Console()
    sections = []
    for number, found in enumerate(chosen, 1):
        console.rule(Text(f"{number}/{len(chosen)}  {found.title}"), align="left")
        with console.status("running …"), _ended_by_interrupts():
            section = execute(found, output / found.name, quick=quick, seed=seed)
        for item in section.items:
            if item["kind"] == "table":
                console.print(_terminal_table(item))
        console.print(f"{section.seconds:.1f} s", style="dim")
        sections.append(section)
    if len(sections) > 1:
        _claims(console, output, sections)
    report.write(page, title, introduction, sections)
    click.echo(f"Report: {page}")
    return page


def _make_folders(folders: list[Path]) -> None:
    """Make them before anything is run, or say which cannot be made."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise click.BadParameter(f"the folder {folder} cannot be made: {reason}", param_hint="--output") from error


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the command: a fit would take it as the wish to end that fit alone, and the next would follow."""

    def end(*_: Any) -> None:
        raise SystemExit("Aborted!")

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _claims(console: Any, output: Path, sections: "list[Section]") -> None:
    """Show and keep one table of all claims."""
    from rich.text import Text

    from thalweg.experiments.claims import gathered
    from thalweg.experiments.section import Run

    columns = gathered(sections)
    if columns["claim"]:
        run = Run(output, sections[0].quick, sections[0].seed)
        run.table("claims", columns, "All claims.")
        console.rule(Text("Claims"), align="left")
        console.print(_terminal_table(run.items[-1]))


def _terminal_table(item: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(item["caption"]), title_justify="left")  # as text: brackets are not markup
    for header, numeric in zip(item["header"], item["numeric"], strict=True):
        table.add_column(Text(header), justify="right" if numeric else "left")
    for row in item["rows"]:
        table.add_row(*map(Text, row))
    return table

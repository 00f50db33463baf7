"""The command ``thalweg``."""

import platform
from pathlib import Path
from typing import Any

import click

from thalweg import __version__
from thalweg.errors import ThalwegError

# What only one command needs (JAX, Matplotlib, rich) is imported by that command: --help is instant.


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
    from thalweg.demo import run_experiments, write_page
    from thalweg.demo.sections import SECTIONS

    sections = run_experiments(SECTIONS, output, quick=True, seed=0)
    introduction = "What the library does, on small data, in about a minute: each section is one experiment."
    page = output / "index.html"
    write_page(page, "Thalweg: a demonstration", introduction, sections)
    click.echo(f"Report: {page}")
    if show:
        click.launch(str(page))


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
    is_wide = jax.config.read("jax_enable_x64")
    facts = {
        "thalweg": __version__,
        "python": platform.python_version(),
        "jax": f"{jax.__version__} (jaxlib {jaxlib.__version__})",
        "devices": ", ".join(str(device) for device in jax.devices()),
        "float64": "on" if is_wide else "off (JAX's default; parts that need it switch it on)",
        "data folders": "\n".join(map(str, data.folders())),
        "data sets": f"{len(here)} of {len(data.list())} here" + (": " + ", ".join(here) if here else ""),
    }
    table = Table.grid(padding=(0, 2))
    for key, text in facts.items():
        table.add_row(key, Text(text))
    Console().print(table)

"""The command ``python -m papers``: reproduce a figure or table, or all of them, and judge what the papers claim."""

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from papers.claims import gather_claims
from thalweg.demo import Experiment, Section, print_table, run_experiments, write_page
from thalweg.errors import ThalwegError


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the figures and tables and stop.")
@click.option("--quick/--full", default=True, show_default=True, help="A size for seconds, or that of the paper.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproductions"),
    show_default=True,
    help="The results go into the folder NAME within this one.",
)
def main(name: str | None, listing: bool, quick: bool, seed: int, output: Path) -> None:
    """Reproduce the figure or table NAME of a paper, or "all" of them, in one report with one table of claims."""
    from papers.catalogue import EXPERIMENTS  # here, so that --help is instant

    if listing:
        _print_list(EXPERIMENTS)
        return
    if name is None:
        raise click.UsageError('give the NAME of a figure or table, "all", or --list')
    chosen = EXPERIMENTS if name == "all" else [find(name, EXPERIMENTS)]
    page = output / "index.html" if name == "all" else output / name / "index.html"
    title = "Four papers, reproduced" if name == "all" else chosen[0].title
    introduction = _INTRODUCTION if name == "all" else ""
    try:
        sections = run_experiments(chosen, output, quick=quick, seed=seed)
        summary = summarise_claims(sections, output) if len(sections) > 1 else None
        write_page(page, title, introduction, sections, summary=summary)
    except (ThalwegError, OSError) as error:  # mistakes of the user end with a sentence, not with a traceback
        raise click.ClickException(str(error)) from error
    click.echo(f"Report: {page}")


_INTRODUCTION = (
    "Every figure and table of the papers, and what they say of them: a claim holds, does not hold, or cannot be "
    "tested at this size."
)


def find(name: str, experiments: Sequence[Experiment]) -> Experiment:
    """Return the experiment of that name, or raise an error that names similar ones."""
    by_name = {experiment.name: experiment for experiment in experiments}
    if name in by_name:
        return by_name[name]
    similar = difflib.get_close_matches(name, by_name, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, similar))}?" if similar else "--list lists them"
    raise click.UsageError(f"no figure or table is called {name!r}; {hint}")


def summarise_claims(sections: Sequence[Section], output: Path) -> dict[str, Any] | None:
    """Write and print one table of the claims of all sections; None if there are none."""
    columns = gather_claims(sections)
    if not columns["claim"]:
        return None
    counts = Counter(columns["verdict"]).items()
    caption = "What the papers say: " + ", ".join(f"{count} {verdict}" for verdict, count in counts) + "."
    summary = Section(output, sections[0].quick, sections[0].seed)
    summary.table("claims", columns, caption)
    print_table(summary.items[-1])
    return summary.items[-1]


def _print_list(experiments: Sequence[Experiment]) -> None:
    table = Table("name", "title", "paper")
    for experiment in experiments:
        table.add_row(experiment.name, Text(experiment.title), Text(experiment.paper))
    Console().print(table)


if __name__ == "__main__":
    main(prog_name="python -m papers")

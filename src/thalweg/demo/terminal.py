"""Running experiments from the command line: progress, tables in the terminal, and what Ctrl-C does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.demo.section import Experiment, Section
from thalweg.runs import raising_interrupts

__all__ = ["print_table", "run_experiments"]


def run_experiments(chosen: Sequence[Experiment], output: Path, *, quick: bool, seed: int) -> list[Section]:
    """Run experiments one by one, each into its folder within ``output``, and print their tables.

    Examples
    --------
    >>> import tempfile
    >>> halving = Experiment("halving", "Halving", "Figure 1", lambda section: section.note("Each step halves it."))
    >>> sections = run_experiments([halving], Path(tempfile.mkdtemp()), quick=True, seed=0)
    1/1  Halving ──...
    ...
    >>> sections[0].name
    'halving'
    """
    for folder in [output / experiment.name for experiment in chosen]:  # before anything is run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise click.BadParameter(f"the folder {folder} cannot be made: {reason}", param_hint="--output") from error
    console = Console()
    sections = []
    for number, experiment in enumerate(chosen, 1):
        console.rule(Text(f"{number}/{len(chosen)}  {experiment.title}"), align="left")
        # Ctrl-C ends the command: a fit would else end alone, keep its result, and the next would begin.
        with console.status("running …"), raising_interrupts():
            section = experiment.run(output / experiment.name, quick=quick, seed=seed)
        for item in section.items:
            if item["kind"] == "table":
                print_table(item)
        console.print(f"{section.seconds:.1f} s", style="dim")
        sections.append(section)
    return sections


def print_table(item: Mapping[str, Any]) -> None:
    """Print a table, an item of a :class:`~thalweg.demo.Section`, to the terminal.

    Examples
    --------
    >>> header, rows = ["step", "error"], [["1", "0.5"]]
    >>> print_table({"caption": "Errors.", "header": header, "rows": rows, "numeric": [True, True]})
    Errors...
    ┏━━━━━━┳━━━━━━━┓
    ┃ step ┃ error ┃
    ┡━━━━━━╇━━━━━━━┩
    │    1 │   0.5 │
    └──────┴───────┘
    """
    table = Table(title=Text(item["caption"]), title_justify="left")  # as text: brackets are not markup
    for header, numeric in zip(item["header"], item["numeric"], strict=True):
        table.add_column(Text(header), justify="right" if numeric else "left")
    for row in item["rows"]:
        table.add_row(*map(Text, row))
    Console().print(table)

"""The demonstration, and the machinery of reports: experiments, their sections, plots, and a page of HTML.

``thalweg demo`` runs the experiments of :mod:`thalweg.demo.sections`. Those that reproduce papers stand in ``papers/``,
beside the library, and use the same machinery.
"""

from thalweg.demo.report import write_page
from thalweg.demo.section import Experiment, Section, experiment
from thalweg.demo.terminal import print_table, run_experiments

__all__ = [
    "Experiment",
    "Section",
    "experiment",
    "print_table",
    "run_experiments",
    "write_page",
]

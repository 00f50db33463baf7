"""The demonstration, and the machinery of reports: experiments, their sections, plots, and a page of HTML.

``thalweg demo`` runs the experiments of :mod:`thalweg.demo.sections`. Those that reproduce papers stand in ``papers/``,
beside the library, and use the same machinery.
"""

from thalweg.demo.report import *
from thalweg.demo.section import *
from thalweg.demo.terminal import *

"""Kernel machines: functions expanded in blocks of coordinates that learn from batches.

The way through the files: ``coordinates`` (blocks of frequencies or points) → ``expansion`` (the function and its
values) → ``rules`` (which block a step goes along) → ``steps`` (one step, and a scan of them); ``visits`` solves for a
block of landmarks from its own rows.
"""

from thalweg.machines.coordinates import Coordinates, Frequencies, Points, coordinates
from thalweg.machines.expansion import Expansion, empty, evaluate, predict, with_room
from thalweg.machines.rules import Capped, Checked, New, Rule, Uniform
from thalweg.machines.steps import Machine, run, take

__all__ = [
    "Capped",
    "Checked",
    "Coordinates",
    "Expansion",
    "Frequencies",
    "Machine",
    "New",
    "Points",
    "Rule",
    "Uniform",
    "coordinates",
    "empty",
    "evaluate",
    "predict",
    "run",
    "take",
    "with_room",
]

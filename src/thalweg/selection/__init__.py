"""Selection: one race for every search among candidates."""

from thalweg.selection.race import Entry, RaceResult, is_better, line_search, race

__all__ = ["Entry", "RaceResult", "is_better", "line_search", "race"]

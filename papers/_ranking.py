"""Where a method is ahead of another, level with it or behind: what claims about several data sets rest on."""

from dataclasses import dataclass

import numpy as np

RELATIVE_MARGIN = 0.01
"""Scores that differ by less than this share are level."""
RANKING_EXPLAINED = (
    "A method is ahead of another where its worst seed is lower than the other's best one by more than {margin}, "
    "behind in the opposite case, and else level."
)


@dataclass(frozen=True)
class Ranking:
    """The data sets on which a method is ahead of another, level or behind, with the means of both."""

    data_sets: dict[str, list[str]]

    @classmethod
    def between(
        cls, ours: dict[str, np.ndarray], others: dict[str, np.ndarray], margin: float | None = None
    ) -> "Ranking":
        """Compare scores of which lower ones are better, one for each seed; the margin is 1 % or given."""
        is_below = lambda worst, best: worst < (best * (1 - RELATIVE_MARGIN) if margin is None else best - margin)
        data_sets: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
        for name, our in ours.items():
            their = others[name]
            ahead, behind = (is_below(np.max(a), np.min(b)) for a, b in ((our, their), (their, our)))
            rank = "ahead" if ahead else "behind" if behind else "level"
            data_sets[rank].append(f"{name} ({np.mean(our):.4g} against {np.mean(their):.4g})")
        return cls(data_sets)

    @property
    def is_ahead_everywhere(self) -> bool:
        """Return whether it is ahead on all data sets."""
        return not (self.data_sets["level"] or self.data_sets["behind"])

    @property
    def is_ahead_mostly(self) -> bool:
        """Return whether it is ahead on more data sets than not."""
        return len(self.data_sets["ahead"]) > len(self.data_sets["level"]) + len(self.data_sets["behind"])

    def __str__(self) -> str:
        return ", ".join(f"{rank} on {_enumerate(names)}" for rank, names in self.data_sets.items() if names)


def _enumerate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

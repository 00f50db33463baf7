"""Where a method is ahead of another, level with it or behind: what claims about several data sets are made from."""

from dataclasses import dataclass

import numpy as np

_LEVEL = 0.01
LEVEL_MEANS = (
    "A method is ahead of another where its worst seed is lower than the other's best one by more than {margin}, "
    "behind in the opposite case, and else level."
)


@dataclass(frozen=True)
class Standing:
    """Where a method is ahead of another, level or behind, by data set, with the means of both."""

    places: dict[str, list[str]]

    @classmethod
    def of(cls, ours: dict[str, np.ndarray], others: dict[str, np.ndarray], margin: float | None = None) -> "Standing":
        """Compare numbers of which lower ones are better, one for each seed; the margin is 1 % or given."""
        below = lambda worst, best: worst < (best * (1 - _LEVEL) if margin is None else best - margin)
        places: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
        for name, our in ours.items():
            their = others[name]
            ahead, behind = (below(np.max(a), np.min(b)) for a, b in ((our, their), (their, our)))
            where = "ahead" if ahead else "behind" if behind else "level"
            places[where].append(f"{name} ({np.mean(our):.4g} against {np.mean(their):.4g})")
        return cls(places)

    @property
    def everywhere(self) -> bool:
        """Whether it is ahead on all data sets."""
        return not (self.places["level"] or self.places["behind"])

    @property
    def mostly(self) -> bool:
        """Whether it is ahead on more data sets than not."""
        return len(self.places["ahead"]) > len(self.places["level"]) + len(self.places["behind"])

    def __str__(self) -> str:
        return ", ".join(f"{where} on {_listed(names)}" for where, names in self.places.items() if names)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

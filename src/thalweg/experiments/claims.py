"""What a paper says, as something that can fail: its words, and a test of what was found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.experiments.section import Run

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this size"


@dataclass(frozen=True)
class Claim:
    """Words of a paper, and whether what was found bears them out; None means that it cannot tell.

    >>> Claim("it falls", lambda values: values[-1] < values[0]).verdict([2.0, 1.0])
    'holds'
    """

    words: str
    test: Callable[[Any], bool | None]

    def verdict(self, found: Any) -> str:
        """One of three."""
        outcome = self.test(found)
        return UNTESTED if outcome is None else HOLDS if outcome else FAILS


def show(run: Run, claims: Sequence[Claim], found: Any) -> None:
    """Tabulate the verdicts."""
    columns = {"claim": [claim.words for claim in claims], "verdict": [claim.verdict(found) for claim in claims]}
    run.table("claims", columns, "What the paper says, and whether it holds here.")

"""What a paper says, as something that can fail: its words, and a test of what was found."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.experiments.section import Run, Section

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this size"
_TABLE = "claims"


@dataclass(frozen=True)
class Claim:
    """Words of a paper, and whether what was found bears them out; None means that it cannot tell.

    ``seen`` says in a few words what the verdict rests on.

    >>> falls = Claim("it falls", lambda values: values[-1] < values[0], lambda values: f"to {values[-1]:g}")
    >>> falls.verdict([2.0, 1.0]), falls.evidence([2.0, 1.0])
    ('holds', 'to 1')
    """

    words: str
    test: Callable[[Any], bool | None]
    seen: Callable[[Any], str] | None = None

    def verdict(self, found: Any) -> str:
        """One of three."""
        outcome = self.test(found)
        return UNTESTED if outcome is None else HOLDS if outcome else FAILS

    def evidence(self, found: Any) -> str:
        """What was seen; nothing where nothing was tested."""
        return "" if self.seen is None or self.test(found) is None else self.seen(found)


def at_full_size(test: Callable[[Any], bool | None]) -> Callable[[Any], bool | None]:
    """The test, where ``found.full`` says that the size was the paper's.

    What fails somewhere fails; what holds where it was looked at is unknown while ``found.missing`` names data sets.

    >>> from types import SimpleNamespace
    >>> always = at_full_size(lambda found: True)
    >>> always(SimpleNamespace(full=True)), always(SimpleNamespace(full=False))
    (True, None)
    >>> always(SimpleNamespace(full=True, missing=["MNIST"]))
    """

    def judge(found: Any) -> bool | None:
        missing: Any = getattr(found, "missing", None)
        outcome = test(found) if found.full else None
        return None if outcome and missing else outcome

    return judge


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is, else True.

    >>> all_of([True, None]), all_of([None, False])
    (None, False)
    """
    found = list(verdicts)
    return False if False in found else None if None in found else True


def show(run: Run, claims: Sequence[Claim], found: Any) -> None:
    """Tabulate the verdicts: what every experiment of a paper ends with.

    >>> import tempfile
    >>> from pathlib import Path
    >>> run = Run(Path(tempfile.mkdtemp()), quick=True, seed=0)
    >>> show(run, [Claim("it is positive", lambda value: value > 0)], -1.0)
    >>> run.items[-1]["rows"]
    [['it is positive', 'does not hold', '']]
    """
    columns = {
        "claim": [claim.words for claim in claims],
        "verdict": [claim.verdict(found) for claim in claims],
        "seen": [claim.evidence(found) for claim in claims],
    }
    run.table(_TABLE, columns, "What the paper says, and whether it holds here.")


def gathered(sections: Sequence[Section]) -> dict[str, list[str]]:
    """All claims of several experiments, as the columns of one table.

    >>> gathered([])
    {'experiment': [], 'claim': [], 'verdict': [], 'seen': []}
    """
    rows = [
        (section.name, *row)
        for section in sections
        for item in section.items
        if item["kind"] == "table" and item["name"] == _TABLE
        for row in item["rows"]
    ]
    headers = ("experiment", "claim", "verdict", "seen")
    return {header: [row[i] if i < len(row) else "" for row in rows] for i, header in enumerate(headers)}

"""Claims of the papers as something that can fail: the paper's words, and a test of the results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.demo import Section

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this size"
_TABLE = "claims"


@dataclass(frozen=True)
class Claim:
    """Words of a paper, and a test whether the results bear them out; None means that they cannot tell.

    ``evidence`` says in a few words what the verdict rests on.

    Examples
    --------
    >>> falls = Claim("it falls", lambda values: values[-1] < values[0], lambda values: f"to {values[-1]:g}")
    >>> falls.verdict([2.0, 1.0]), falls.evidence_in([2.0, 1.0])
    ('holds', 'to 1')
    """

    words: str
    test: Callable[[Any], bool | None]
    evidence: Callable[[Any], str] | None = None

    def verdict(self, results: Any) -> str:
        """Return one of the three verdicts."""
        outcome = self.test(results)
        return UNTESTED if outcome is None else HOLDS if outcome else FAILS

    def evidence_in(self, results: Any) -> str:
        """Return what the verdict rests on; nothing where nothing was tested."""
        return "" if self.evidence is None or self.test(results) is None else self.evidence(results)


def at_full_size(test: Callable[[Any], bool | None]) -> Callable[[Any], bool | None]:
    """Return the test where ``results.full`` says that the size was the paper's, and None elsewhere.

    A failure on some data sets is a failure; a success is unknown while ``results.missing`` names data sets.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> always = at_full_size(lambda results: True)
    >>> always(SimpleNamespace(full=True)), always(SimpleNamespace(full=False))
    (True, None)
    >>> always(SimpleNamespace(full=True, missing=["MNIST"]))
    """

    def test_at_full_size(results: Any) -> bool | None:
        outcome = test(results) if results.full else None
        return None if outcome and getattr(results, "missing", None) else outcome

    return test_at_full_size


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """Return False if one is False, else None if one is None, else True.

    Examples
    --------
    >>> all_of([True, None]), all_of([None, False])
    (None, False)
    """
    outcomes = list(outcomes)
    return False if False in outcomes else None if None in outcomes else True


def show_claims(section: Section, claims: Sequence[Claim], results: Any) -> None:
    """Add the table of verdicts, with which every figure and table of a paper ends.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> section = Section(Path(tempfile.mkdtemp()), quick=True, seed=0)
    >>> show_claims(section, [Claim("it is positive", lambda value: value > 0)], -1.0)
    >>> section.items[-1]["rows"]
    [['it is positive', 'does not hold', '']]
    """
    columns = {
        "claim": [claim.words for claim in claims],
        "verdict": [claim.verdict(results) for claim in claims],
        "seen": [claim.evidence_in(results) for claim in claims],
    }
    section.table(_TABLE, columns, "What the paper says, and whether it holds here.")


def gather_claims(sections: Sequence[Section]) -> dict[str, list[str]]:
    """Return the claims of several sections as the columns of one table.

    Examples
    --------
    >>> gather_claims([])
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
    return {header: [row[i] for row in rows] for i, header in enumerate(headers)}

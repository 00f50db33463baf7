"""Claims turn with the numbers."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from papers.catalogue import EXPERIMENTS
from papers.claims import FAILS, HOLDS, UNTESTED, Claim
from papers.scgd_figure3 import CLAIMS, ErrorCurve, Figure3Results, scgd_figure3

FASTER, TWICE, STICKS, AVOIDS, OURS = CLAIMS


def curves(data, method, seconds, ends):
    return [
        ErrorCurve(data, method, start, [0.0, second], [1.0, end])
        for start, second, end in zip((1e-4, 1e-3, 1e-2, 1e-1), seconds, ends, strict=True)
    ]


def papers_world():
    """Return numbers with which all claims hold."""
    results = []
    for data, best in (("sound", 0.036), ("humidity", 0.1)):
        results += curves(data, "SGD", [1.0] * 4, [best] * 4)
        ends = [best, best, 2 * best, 2 * best] if data == "humidity" else [best] * 4
        results += curves(data, "LANCZOS", [3.0] * 4, ends)
        results += curves(data, "GPRegressor", [0.1] * 4, [best] * 4)
    return Figure3Results(results, full=True)


def changed(results, data, method, **changes):
    return replace(
        results,
        curves=[replace(c, **changes) if (c.data, c.method) == (data, method) else c for c in results.curves],
    )


def test_a_claim_has_three_verdicts():
    claim = Claim("it is positive", lambda value: None if np.isnan(value) else value > 0)
    assert [claim.verdict(value) for value in (1.0, -1.0, np.nan)] == [HOLDS, FAILS, UNTESTED]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_figure_and_table_has_claims(experiment):
    function = getattr(experiment.function, "func", experiment.function)  # a partial one, where settings differ
    claims = sys.modules[function.__module__].CLAIMS
    assert claims
    assert all(isinstance(claim, Claim) for claim in claims)


PAPERS = {
    "Utilize old coordinates": ["Figure 1", "Figure 2", *(f"Table {n}" for n in range(1, 7))],
    "Faster stochastic variational inference": ["Figure 1", "Figure 2", "Figure 3", "Table 1"],
    "Stochastic Chebyshev gradient descent": ["Figure 1", "Figure 2", "Figure 3"],
}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_is_listed(paper):
    listed = " ".join(each.paper for each in EXPERIMENTS if each.paper.startswith(paper))
    assert [item for item in PAPERS[paper] if item not in listed] == []


def test_all_claims_hold_where_the_paper_is_right():
    assert [claim.verdict(papers_world()) for claim in CLAIMS] == [HOLDS] * 5


@pytest.mark.parametrize(
    ("claim", "data", "method", "changes"),
    [
        (FASTER, "sound", "SGD", {"seconds": [0.0, 30.0]}),
        (TWICE, "sound", "SGD", {"seconds": [0.0, 2.0]}),
        (STICKS, "humidity", "LANCZOS", {"errors": [1.0, 0.1]}),
        (AVOIDS, "humidity", "SGD", {"errors": [0.1, 0.2]}),
        (AVOIDS, "humidity", "SGD", {"errors": [0.1, np.nan]}),
        (OURS, "sound", "GPRegressor", {"errors": [0.036, 0.05]}),
    ],
)
def test_broken_numbers_turn_the_verdict(claim, data, method, changes):
    assert claim.verdict(changed(papers_world(), data, method, **changes)) == FAILS


def test_nobody_is_faster_where_nobody_arrives():
    results = papers_world()
    for method in ("SGD", "LANCZOS"):
        results = changed(results, "sound", method, errors=[1.0, 1.0])
    assert [claim.verdict(results) for claim in (FASTER, TWICE)] == [FAILS, FAILS]


def test_drawn_rows_give_no_verdict_on_the_paper():
    quick = replace(papers_world(), full=False)
    assert [claim.verdict(quick) for claim in (FASTER, TWICE, STICKS, AVOIDS)] == [UNTESTED] * 4


@pytest.mark.slow
def test_figure3_runs_and_our_search_sticks_nowhere(tmp_path):
    section = scgd_figure3.run(tmp_path, quick=True, seed=0)
    table = next(item for item in section.items if item["kind"] == "table" and item["name"] == "claims")
    assert table["rows"][-1][1] == HOLDS

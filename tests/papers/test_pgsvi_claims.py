"""The claims of PG-SVI's Figures 1 and 2 turn with the numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from papers import pgsvi_figure1, pgsvi_figure2
from papers.claims import FAILS, HOLDS, UNTESTED
from papers.pgsvi_figure1 import Sweep
from papers.pgsvi_figure2 import DATA_SETS, DataSetCurves

FASTER, LONGER, AS_FAST = pgsvi_figure1.CLAIMS
AHEAD, TEN, HUNDRED, FINITE, PREDICTS = pgsvi_figure2.CLAIMS


def sweep(*examples):
    """A method at sizes 1, 2, 3, …, each given 10,000 examples."""
    count = len(examples)
    reached = np.array(examples, float)
    return Sweep(np.arange(1.0, count + 1), reached, np.zeros(count), np.full(count, 1e4), np.zeros(count, bool))


def figure1(**changes):
    """Return numbers with which all claims about Figure 1 hold."""
    sweeps = {
        "GD": sweep(5000, 4000, np.nan),
        "PG": replace(sweep(300, 100, 90), sizes=np.array([1.0, 10.0, 30.0])),
        "PG-MC": sweep(300, 120, np.nan),
        "PG-SVI": sweep(200, 100, np.nan),
    }
    return pgsvi_figure1.Figure1Results("ionosphere", 10, sweeps | changes, full=True)


def test_figure1_holds_where_the_paper_is_right():
    assert [claim.verdict(figure1()) for claim in pgsvi_figure1.CLAIMS] == [HOLDS] * 3
    assert "GD 400, PG 9" in FASTER.evidence_in(figure1())


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        (FASTER, {"GD": sweep(150, np.nan)}, FAILS),
        (FASTER, {"PG-SVI": sweep(np.nan, np.nan)}, FAILS),
        # 10,000 examples that did not suffice are a lower bound.
        (FASTER, {"GD": sweep(np.nan, np.nan)}, HOLDS),
        (LONGER, {"PG": sweep(300, 100, 90)}, FAILS),
        (LONGER, {"PG": sweep(np.nan)}, FAILS),
        # The last size tried is no bound, and a method that never arrives has none.
        (LONGER, {"GD": sweep(5000, 4000)}, UNTESTED),
        (LONGER, {"GD": sweep(np.nan)}, UNTESTED),
        (AS_FAST, {"PG-SVI": sweep(200, 150, np.nan)}, FAILS),
        (AS_FAST, {"PG-SVI": sweep(np.nan)}, FAILS),
    ],
)
def test_figure1_turns_with_the_numbers(claim, changes, verdict):
    assert claim.verdict(figure1(**changes)) == verdict


def figure2(long=300, **changes):
    """Return four data sets and two baselines with which all claims hold; changes are gaps by method."""
    names = ("PG-SVI", "Adam", "SGD")
    gaps = {"PG-SVI": [50.0, 0.5], "Adam": [50.0, 20.0], "SGD": [50.0, 30.0]} | changes
    bounds = {name: np.array([gaps[name]] * 2) + 100 for name in names}
    losses = {name: np.array([[1.0, 0.3 if name == "PG-SVI" else 0.6]] * 2) for name in names}
    runs = {name: np.full(long + 1, 105.0) for name in ("Adam", "SGD")} if long else {}
    sets = [DataSetCurves(SimpleNamespace(name=name), bounds, losses, 100.0, 0.2, runs) for name in DATA_SETS]
    return pgsvi_figure2.Figure2Results(sets, full=True)


def test_figure2_holds_where_the_paper_is_right():
    assert [claim.verdict(figure2()) for claim in pgsvi_figure2.CLAIMS] == [HOLDS] * 5
    assert TEN.evidence_in(figure2()).startswith("sonar 0.5 nats; ionosphere 0.5 nats")
    assert HUNDRED.evidence_in(figure2()).startswith("sonar Adam > 300, SGD > 300")


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        (AHEAD, {"Adam": [50.0, 0.4]}, FAILS),
        (AHEAD, {"PG-SVI": [50.0, np.nan]}, FAILS),
        # A baseline that diverged is not compared with.
        (AHEAD, {"Adam": [50.0, np.nan], "SGD": [50.0, np.nan]}, UNTESTED),
        (AHEAD, {"Adam": [50.0, np.nan]}, HOLDS),
        (FINITE, {"Adam": [50.0, np.nan]}, FAILS),
        (TEN, {"PG-SVI": [50.0, 1.5]}, FAILS),
        (HUNDRED, {"SGD": [50.0, 0.9]}, FAILS),
        (HUNDRED, {"long": 0}, UNTESTED),
        (HUNDRED, {"long": 60}, UNTESTED),
    ],
)
def test_figure2_turns_with_the_numbers(claim, changes, verdict):
    assert claim.verdict(figure2(**changes)) == verdict


def test_predictions_are_compared_by_log_loss():
    results = figure2()
    results.data_sets[1].losses["SGD"][:] = 0.2  # which all four share
    assert PREDICTS.verdict(results) == FAILS


def test_some_of_the_data_sets_can_refute_but_not_confirm():
    some = lambda **changes: replace(figure2(**changes), data_sets=figure2(**changes).data_sets[:2])
    assert [TEN.verdict(some()), TEN.verdict(some(**{"PG-SVI": [50.0, 1.5]}))] == [UNTESTED, FAILS]


def test_one_data_set_that_fails_is_enough():
    results = figure2()
    results.data_sets[1].bounds["PG-SVI"] = np.full((2, 2), 150.0)
    assert [AHEAD.verdict(results), TEN.verdict(results)] == [FAILS, FAILS]


@pytest.mark.parametrize("results", [figure1(), figure2()])
def test_other_data_sets_give_no_verdict(results):
    claims = pgsvi_figure1.CLAIMS if hasattr(results, "sweeps") else pgsvi_figure2.CLAIMS
    assert {claim.verdict(replace(results, full=False)) for claim in claims} == {UNTESTED}
    assert {claim.evidence_in(replace(results, full=False)) for claim in claims} == {""}

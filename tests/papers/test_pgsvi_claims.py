"""The claims of PG-SVI's Figures 1 and 2 turn with the numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from thalweg.experiments import pgsvi_figure1, pgsvi_figure2
from thalweg.experiments.claims import FAILS, HOLDS, UNTESTED
from thalweg.experiments.pgsvi_figure1 import Sweep
from thalweg.experiments.pgsvi_figure2 import DATA_SETS, Curves

FASTER, LONGER, AS_FAST = pgsvi_figure1.CLAIMS
AHEAD, TEN, HUNDRED, FINITE, PREDICTS = pgsvi_figure2.CLAIMS


def sweep(*examples):
    """A method at sizes 1, 2, 3, …, each given 10,000 examples."""
    count = len(examples)
    reached = np.array(examples, float)
    return Sweep(np.arange(1.0, count + 1), reached, np.zeros(count), np.full(count, 1e4), np.zeros(count, bool))


def figure1(**changes):
    """Numbers under which all that the paper says of Figure 1 is so."""
    sweeps = {
        "GD": sweep(5000, 4000, np.nan),
        "PG": replace(sweep(300, 100, 90), sizes=np.array([1.0, 10.0, 30.0])),
        "PG-MC": sweep(300, 120, np.nan),
        "PG-SVI": sweep(200, 100, np.nan),
    }
    return pgsvi_figure1.Found("ionosphere", 10, sweeps | changes, full=True)


def test_figure1_holds_where_the_paper_is_right():
    assert [claim.verdict(figure1()) for claim in pgsvi_figure1.CLAIMS] == [HOLDS] * 3
    assert "GD 400, PG 9" in FASTER.evidence(figure1())


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        (FASTER, {"GD": sweep(150, np.nan)}, FAILS),
        (FASTER, {"PG-SVI": sweep(np.nan, np.nan)}, FAILS),
        # Ten thousand in vain are at least as many.
        (FASTER, {"GD": sweep(np.nan, np.nan)}, HOLDS),
        (LONGER, {"PG": sweep(300, 100, 90)}, FAILS),
        (LONGER, {"PG": sweep(np.nan)}, FAILS),
        # The last size tried is no bound, and neither is none.
        (LONGER, {"GD": sweep(5000, 4000)}, UNTESTED),
        (LONGER, {"GD": sweep(np.nan)}, UNTESTED),
        (AS_FAST, {"PG-SVI": sweep(200, 150, np.nan)}, FAILS),
        (AS_FAST, {"PG-SVI": sweep(np.nan)}, FAILS),
    ],
)
def test_figure1_turns_with_the_numbers(claim, changes, verdict):
    assert claim.verdict(figure1(**changes)) == verdict


def figure2(long=300, **changes):
    """Four data sets and two baselines, all as the paper says; changes are gaps by method."""
    names = ("PG-SVI", "Adam", "SGD")
    gaps = {"PG-SVI": [50.0, 0.5], "Adam": [50.0, 20.0], "SGD": [50.0, 30.0]} | changes
    bounds = {name: np.array([gaps[name]] * 2) + 100 for name in names}
    losses = {name: np.array([[1.0, 0.3 if name == "PG-SVI" else 0.6]] * 2) for name in names}
    runs = {name: np.full(long + 1, 105.0) for name in ("Adam", "SGD")} if long else {}
    sets = [Curves(SimpleNamespace(name=name), bounds, losses, 100.0, 0.2, runs) for name in DATA_SETS]
    return pgsvi_figure2.Found(sets, full=True)


def test_figure2_holds_where_the_paper_is_right():
    assert [claim.verdict(figure2()) for claim in pgsvi_figure2.CLAIMS] == [HOLDS] * 5
    assert TEN.evidence(figure2()).startswith("sonar 0.5 nats; ionosphere 0.5 nats")
    assert HUNDRED.evidence(figure2()).startswith("sonar Adam > 300, SGD > 300")


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        (AHEAD, {"Adam": [50.0, 0.4]}, FAILS),
        (AHEAD, {"PG-SVI": [50.0, np.nan]}, FAILS),
        # A baseline that diverged is no baseline to beat, and is named.
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
    found = figure2()
    found.all[1].losses["SGD"][:] = 0.2  # which all four share
    assert PREDICTS.verdict(found) == FAILS


def test_some_of_the_data_sets_can_refute_but_not_confirm():
    some = lambda **changes: replace(figure2(**changes), all=figure2(**changes).all[:2])
    assert [TEN.verdict(some()), TEN.verdict(some(**{"PG-SVI": [50.0, 1.5]}))] == [UNTESTED, FAILS]


def test_one_data_set_that_fails_is_enough():
    found = figure2()
    found.all[1].bounds["PG-SVI"] = np.full((2, 2), 150.0)
    assert [AHEAD.verdict(found), TEN.verdict(found)] == [FAILS, FAILS]


@pytest.mark.parametrize("found", [figure1(), figure2()])
def test_other_data_tell_nothing(found):
    claims = pgsvi_figure1.CLAIMS if hasattr(found, "sweeps") else pgsvi_figure2.CLAIMS
    assert {claim.verdict(replace(found, full=False)) for claim in claims} == {UNTESTED}
    assert {claim.evidence(replace(found, full=False)) for claim in claims} == {""}

import json

import numpy as np
import pytest

from papers import scgd_figure2 as figure
from thalweg.completion import Path
from thalweg.descent import Status


def path(seconds, errors):
    return Path(None, seconds, errors, [], Status.STEPS_SPENT)


def test_verdicts_turn_with_the_numbers_and_are_not_given_where_nothing_arrived():
    claim = figure.CLAIMS[0]
    slow, quick = path([0.0, 4.0, 8.0], [3.0, 2.0, 1.4]), path([0.0, 3.0], [3.0, 1.4])
    verdict = lambda gd, svrg: claim.verdict(figure.Figure2Results(True, {"a": {"GD": gd, "SVRG": svrg}}))
    assert verdict(slow, quick) == "holds"
    assert verdict(quick, slow) == "does not hold"
    assert verdict(path([0.0, 8.0], [3.0, 2.0]), quick) == "holds"  # it took longer than that
    assert verdict(path([0.0, 4.0], [3.0, 2.0]), quick) == "does not hold"  # nobody knows how much longer
    assert verdict(path([0.0, 8.0], [3.0, 2.0]), path([0.0, 8.0], [3.0, 2.0])) == "not tested at this size"
    assert claim.verdict(figure.Figure2Results(False, {"a": {"GD": slow, "SVRG": quick}})) == "not tested at this size"


def as_the_paper_has_it():
    """Curves with which every claim holds."""
    fall = lambda seconds, last: path([0.0, seconds, 10 * seconds], [3.0, 1.4, last])
    ends = {"Theorem 3": 1.0, "Poisson": 1.2, "negative binomial": 1.3, "ours": 1.0}
    degrees = {"plain SGD, N = 10": 1.05, "plain SGD, N = 30": 1.0, "SGD-DET, N = 10": 1.8, "SGD-DET, N = 30": 1.3}
    plain = {"plain SGD": fall(3.5, 1.0), "SGD-DET": fall(4.0, 1.4)}
    return {
        "a": {"GD": fall(9.0, 1.2), "SVRG": fall(2.0, 0.9), "SGD": fall(3.0, 1.0), **plain},
        "b": {"GD": fall(9.0, 1.2), "SVRG": fall(2.0, 0.9)},
        "c": {name: fall(1.0, end) for name, end in ends.items()},
        "d": {name: fall(1.0, end) for name, end in degrees.items()},
    }


(FASTEST,) = [claim for claim in figure.CLAIMS if "fastest one" in claim.words]

BREAKING = [
    ("about 2 times", "a", "SVRG", 7.0, 0.9),
    ("fastest one", "a", "SVRG", 3.2, 0.9),
    ("SGD converges much faster", "a", "SGD", 8.0, 1.0),
    ("same of plain SGD", "a", "plain SGD", 8.0, 1.0),
    ("SGD-DET performs badly", "a", "SGD-DET", 4.0, 1.0),
    ("SGD-DET comes to RMSE 1.5 after", "a", "SGD-DET", 2.5, 1.4),
    ("other distributions", "c", "Poisson", 1.0, 0.9),
    ("our law", "c", "ours", 1.0, 1.3),
    ("a larger degree", "d", "SGD-DET, N = 30", 1.0, 1.9),
    ("regardless of the degree", "d", "plain SGD, N = 30", 1.0, 1.5),
    ("up to 6 times", "b", "SVRG", 7.0, 0.9),
]


@pytest.mark.parametrize(("words", "panel", "name", "seconds", "last"), BREAKING)
def test_each_claim_holds_with_the_papers_curves_and_not_with_a_broken_one(words, panel, name, seconds, last):
    (claim,) = [claim for claim in figure.CLAIMS if words in claim.words]
    curves = as_the_paper_has_it()
    assert claim.verdict(figure.Figure2Results(True, curves)) == "holds"
    curves[panel][name] = path([0.0, seconds, 10 * seconds], [3.0, 1.4, last])
    assert claim.verdict(figure.Figure2Results(True, curves)) == "does not hold"
    del curves[panel]
    assert claim.verdict(figure.Figure2Results(True, curves)) == "not tested at this size"


def test_a_run_that_was_cut_early_decides_nothing():
    curves = as_the_paper_has_it()
    curves["a"]["SVRG"] = path([0.0, 2.0], [3.0, 2.0])  # GD arrived after 9 s, SGD after 3 s
    assert figure.CLAIMS[0].verdict(figure.Figure2Results(True, curves)) == "not tested at this size"
    assert FASTEST.verdict(figure.Figure2Results(True, curves)) == "not tested at this size"
    curves["a"]["SVRG"] = path([0.0, 5.0], [3.0, 2.0])
    assert figure.CLAIMS[0].verdict(figure.Figure2Results(True, curves)) == "does not hold"


def test_nobody_is_the_fastest_where_nobody_arrives():
    never = {name: path([0.0, 8.0], [3.0, 2.0]) for name in ("GD", "SVRG", "SGD", "SGD-DET")}
    assert FASTEST.verdict(figure.Figure2Results(True, {"a": never})) == "not tested at this size"


@pytest.mark.slow
def test_the_quick_size_draws_three_panels_and_gives_no_verdicts(tmp_path):
    section = figure.scgd_figure2.run(tmp_path, quick=True, seed=0)
    assert {item["name"] for item in section.items if item["kind"] == "figure"} == {"a", "c", "d"}
    panels = {panel: json.loads((tmp_path / f"curves_{panel}.json").read_text()) for panel in "acd"}
    assert [len(curves) for curves in panels.values()] == [5, 4, 4]
    curves = panels["a"]
    for name in ("GD", "SVRG"):
        errors = np.asarray(curves[name]["rmse"], float)
        assert errors[-1] < 0.9 * errors[0]
    verdicts = next(item for item in section.items if item["kind"] == "table" and item["name"] == "claims")
    assert {row[1] for row in verdicts["rows"]} == {"not tested at this size"}

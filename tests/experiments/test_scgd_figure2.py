import json

import numpy as np
import pytest

from thalweg.completion import Path
from thalweg.descent import Status
from thalweg.experiments import scgd_figure2 as figure
from thalweg.experiments.registry import execute, find


def path(seconds, errors):
    return Path(None, seconds, errors, [], 0.0, Status.STEPS_SPENT)


def test_verdicts_turn_with_the_numbers_and_are_not_given_where_nothing_arrived():
    claim = figure.CLAIMS[0]
    slow, quick = path([0.0, 4.0, 8.0], [3.0, 2.0, 1.4]), path([0.0, 3.0], [3.0, 1.4])
    judged = lambda gd, svrg: claim.verdict(figure.Found(True, {"a": {"GD": gd, "SVRG": svrg}}))
    assert judged(slow, quick) == "holds"
    assert judged(quick, slow) == "does not hold"
    assert judged(path([0.0, 8.0], [3.0, 2.0]), quick) == "holds"  # it took longer than that
    assert judged(path([0.0, 4.0], [3.0, 2.0]), quick) == "does not hold"  # nobody knows how much longer
    assert judged(path([0.0, 8.0], [3.0, 2.0]), path([0.0, 8.0], [3.0, 2.0])) == "not tested at this size"
    assert claim.verdict(figure.Found(False, {"a": {"GD": slow, "SVRG": quick}})) == "not tested at this size"


@pytest.mark.slow
def test_the_quick_size_draws_three_panels_and_gives_no_verdicts(tmp_path):
    section = execute(find("scgd-figure2"), tmp_path, quick=True, seed=0)
    assert {item["name"] for item in section.items if item["kind"] == "figure"} == {"a", "c", "d"}
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert len(curves) == 4 + 4 + 4
    for name in ("a GD", "a SVRG"):
        errors = np.asarray(curves[name]["rmse"], float)
        assert errors[-1] < 0.9 * errors[0]
    verdicts = next(item for item in section.items if item["kind"] == "table" and item["name"] == "claims")
    assert {row[1] for row in verdicts["rows"]} == {"not tested at this size"}

import json

import numpy as np
import pytest

from thalweg.experiments.registry import execute, find


@pytest.mark.slow
def test_figure1_has_four_curves_and_ours_is_lowest(tmp_path):
    section = execute(find("spectral-figure1"), tmp_path, quick=True, seed=0)
    assert {item["name"] for item in section.items if item["kind"] == "figure"} == {
        "variance-log",
        "variance-sqrt",
        "variance-exp",
        "coefficients",
    }
    numbers = json.loads((tmp_path / "curves.json").read_text())
    for panel in ("log", "sqrt", "exp"):
        curves = {label: np.asarray(values, float) for label, values in numbers[panel].items()}
        ours = curves.pop("coefficient-optimal")
        for label, values in curves.items():
            assert np.all(ours <= values * (1 + 1e-9)), (panel, label)
            # Variance falls as the mean degree grows: nothing drawn is rounding.
            assert np.all(np.diff(values) <= 0), (panel, label)

"""The demonstration of Gaussian processes: PG-SVI is ahead of Adam."""

import json

import jax
import numpy as np
import pytest

from thalweg.demo.gp import gp


@pytest.mark.slow
def test_pg_svi_reaches_the_optimum_that_adam_is_still_far_from(tmp_path):
    # Optax promotes counts to floats.
    with jax.numpy_dtype_promotion("standard"):
        section = gp.run(tmp_path, quick=True, seed=0)
    curves = json.loads((section.folder / "curves.json").read_text(encoding="utf-8"))
    optimum = curves.pop("optimum")
    ends = {name: np.array(curve["losses"])[-1] - optimum for name, curve in curves.items()}
    # The model's own tolerance leaves up to a thousandth of a nat.
    assert all(np.min(curve["losses"]) > optimum - 1e-3 for curve in curves.values())
    assert ends.pop("PG-SVI") < 0.02
    assert len(ends) == 3
    assert min(ends.values()) > 1
    assert {item["kind"] for item in section.items} == {"note", "figure", "table", "numbers"}

"""The demonstration of matrix completion: the rank is found, and intervals hold."""

import json

import pytest

from thalweg.experiments import registry


@pytest.mark.slow
def test_hidden_ratings_are_found_within_their_intervals(tmp_path):
    section = registry.execute(registry.find("demo-completion"), tmp_path, quick=True, seed=0)
    found = json.loads((section.folder / "found.json").read_text(encoding="utf-8"))
    assert sum(strength > 0.1 for strength in found["strengths"]) == 2
    assert found["rmse"] < 0.75 * found["spread of the truth"]
    assert 0.92 < found["coverage"] <= 1
    assert {item["kind"] for item in section.items} == {"note", "figure", "table", "numbers"}

"""The demonstration of matrix completion: the rank is results, and intervals hold."""

import json

import pytest

from thalweg.demo.completion import completion


@pytest.mark.slow
def test_hidden_ratings_are_found_within_their_intervals(tmp_path):
    section = completion.run(tmp_path, quick=True, seed=0)
    results = json.loads((section.folder / "results.json").read_text(encoding="utf-8"))
    assert sum(strength > 0.1 for strength in results["strengths"]) == 2
    assert results["rmse"] < 0.75 * results["spread of the truth"]
    assert 0.92 < results["coverage"] <= 1
    assert {item["kind"] for item in section.items} == {"note", "figure", "table", "numbers"}

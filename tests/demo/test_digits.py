import csv

import pytest

from thalweg.demo.digits import digits


@pytest.mark.slow
def test_landmarks_and_preconditioned_blocks_learn_digits_where_plain_dsg_is_still_far(tmp_path):
    section = digits.run(tmp_path, quick=True, seed=0)
    with (section.folder / "growth.csv").open(encoding="utf-8") as file:
        errors = {row["machine"]: float(row["error on test images"]) for row in csv.DictReader(file)}
    assert errors["landmarks, each seen once"] < 0.03
    assert errors["DSG, preconditioned"] < 0.06
    assert errors["DSG"] > 2 * errors["DSG, preconditioned"]
    assert {item["kind"] for item in section.items} == {"note", "figure", "table", "numbers"}

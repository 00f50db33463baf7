import csv
import json

import numpy as np
import pytest

from thalweg.experiments import demo_logistic, registry, report

EXACT = ["GD", "heavy ball", "Nesterov", "FISTA", "restarted"]
ACCELERATED = EXACT[1:]
SECTIONS = ["demo-lasso", "demo-logistic"]


def test_the_demo_has_both_sections_in_order():
    names = [found.name for found in registry.experiments() if found.demo]
    assert [name for name in names if name in SECTIONS] == SECTIONS


def test_the_reference_of_the_logistic_regression_is_an_optimum():
    (features, labels), _, _ = demo_logistic._load(0)
    reference = demo_logistic._Reference(features, labels)
    assert reference.violation < 1e-12
    moves = np.random.default_rng(0).normal(scale=1e-3, size=(10, reference.x.size))
    assert all(reference.objective(reference.x + move) > reference.value for move in moves)


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return {name: registry.execute(registry.find(name), folder / name, quick=True, seed=0) for name in SECTIONS}


def curves(section):
    text = (section.folder / "curves.json").read_text(encoding="utf-8")
    found = {name: entry for name, entry in json.loads(text).items() if name != "optimum"}
    return {name: (np.array(entry["passes"]), np.array(entry["gap"])) for name, entry in found.items()}


def passes_to(curve, gap):
    passes, gaps = curve
    return passes[np.flatnonzero(gaps <= gap)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_exact_methods_and_svrg_reach_the_optimum_and_none_goes_below(sections, name):
    found = curves(sections[name])
    assert all(found[method][1].min() < 1e-6 for method in [*EXACT, "SVRG"])
    assert all(gaps.min() > -1e-13 for _, gaps in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_acceleration_saves_passes(sections, name):
    found = curves(sections[name])
    assert all(passes_to(found[method], 1e-6) < passes_to(found["GD"], 1e-6) for method in ACCELERATED)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_svrg_is_ahead_of_sgd_at_equal_passes(sections, name):
    found = curves(sections[name])
    last = found["SVRG"][0][-1]
    passes, gaps = found["SGD"]
    assert 1e3 * found["SVRG"][1][-1] < np.interp(last, passes, gaps)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_all_that_converge_find_the_same_support(sections, name):
    with open(sections[name].folder / "methods.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["nnz"] for row in rows if row["status"] == "converged"} == {rows[3]["nnz"]}
    assert {row["status"] for row in rows} == {"converged", "work spent"}


@pytest.mark.slow
def test_the_path_is_that_of_scikit_learn(sections):
    path = json.loads((sections["demo-lasso"].folder / "path.json").read_text(encoding="utf-8"))
    assert path["difference"] < 1e-7


@pytest.mark.slow
def test_the_report_needs_no_other_file(sections):
    page = report.build("Demo", "", list(sections.values()))
    assert page.count("<svg") == 4
    for outside in ("src=", "<link", "<script", "@import", "url(http", "<img"):
        assert outside not in page

"""The lasso and logistic regression of the demonstration: methods converge as they should."""

import csv
import json

import jax
import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from thalweg.demo import write_page
from thalweg.demo.lasso import lasso
from thalweg.demo.logistic import WEIGHT, elastic_net, logistic

EXACT = ["GD", "heavy ball", "Nesterov", "FISTA", "restarted"]
ACCELERATED = EXACT[1:]
SECTIONS = {"lasso": lasso, "logistic": logistic}


@pytest.mark.slow
def test_the_reference_of_the_logistic_regression_is_the_optimum_that_scipy_finds():
    data = load_breast_cancer()
    features, labels = StandardScaler().fit_transform(data.data), np.where(data.target == 0, 1.0, -1.0)
    with jax.enable_x64(True):
        problem, violation = elastic_net(features, labels)
    assert violation < 1e-12
    rows = labels[:, None] * np.column_stack([features, np.ones(len(labels))])
    penalty = np.append(np.full(features.shape[1], WEIGHT), 0.0)

    def split(parts):
        """x = u − v with u, v ≥ 0, where the penalty is linear."""
        u, v = np.split(parts, 2)
        x = u - v
        gradient = penalty * x - rows.T @ expit(-rows @ x) / len(rows)
        value = np.logaddexp(0, -rows @ x).mean() + penalty @ x**2 / 2 + penalty @ (u + v)
        return value, np.concatenate([gradient + penalty, -gradient + penalty])

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-10}
    start = np.zeros(2 * len(penalty))
    theirs = scipy_minimize(split, start, jac=True, bounds=[(0, None)] * len(start), options=options).fun
    assert theirs - 1e-8 < problem.optimum <= theirs + 1e-14


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return {name: section.run(folder / name, quick=True, seed=0) for name, section in SECTIONS.items()}


def curves(section):
    text = (section.folder / "curves.json").read_text(encoding="utf-8")
    entries = {name: entry for name, entry in json.loads(text).items() if name != "optimum"}
    return {name: (np.array(entry["passes"]), np.array(entry["gap"])) for name, entry in entries.items()}


def passes_to(curve, gap):
    passes, gaps = curve
    return passes[np.flatnonzero(gaps <= gap)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_exact_methods_and_svrg_reach_the_optimum_and_none_goes_below(sections, name):
    results = curves(sections[name])
    assert all(results[method][1].min() < 1e-6 for method in [*EXACT, "SVRG"])
    assert all(gaps.min() > -1e-13 for _, gaps in results.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_acceleration_saves_passes(sections, name):
    results = curves(sections[name])
    assert all(passes_to(results[method], 1e-6) < passes_to(results["GD"], 1e-6) for method in ACCELERATED)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_svrg_is_ahead_of_sgd_at_equal_passes(sections, name):
    results = curves(sections[name])
    last = results["SVRG"][0][-1]
    passes, gaps = results["SGD"]
    assert 1e3 * results["SVRG"][1][-1] < np.interp(last, passes, gaps)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_all_that_converge_find_the_same_support(sections, name):
    with open(sections[name].folder / "methods.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["nnz"] for row in rows if row["status"] == "converged"} == {rows[3]["nnz"]}
    assert {row["status"] for row in rows} == {"converged", "work spent"}


@pytest.mark.slow
def test_the_path_is_that_of_scikit_learn(sections):
    path = json.loads((sections["lasso"].folder / "path.json").read_text(encoding="utf-8"))
    assert path["difference"] < 1e-7


@pytest.mark.slow
def test_the_report_needs_no_other_file(sections, tmp_path):
    write_page(tmp_path / "index.html", "Demo", "", list(sections.values()))
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    for outside in ("src=", "<link", "<script", "@import", "url(http", "<img"):
        assert outside not in page

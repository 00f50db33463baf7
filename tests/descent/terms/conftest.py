"""Tests that ask for ``case`` run on every row of the table in cases.py; other names choose some rows."""

from .cases import CASES

KINDS = {
    "case": lambda case: True,
    "convex_case": lambda case: case.term.convex,
    "indicator_case": lambda case: case.term.indicator,
    "separable_case": lambda case: case.term.separable,
    "coupled_case": lambda case: not case.term.separable,
}


def pytest_generate_tests(metafunc):
    for name, chosen in KINDS.items():
        if name in metafunc.fixturenames:
            cases = [case for case in CASES if chosen(case)]
            metafunc.parametrize(name, cases, ids=lambda case: case.name)

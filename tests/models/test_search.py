"""The search from the host: the iterates of the compiled loop, and every way to end."""

import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.compiling import quick_options
from thalweg.descent import Descent, Monotone, Status, Tolerance, minimize
from thalweg.gaussian import BernoulliLogit, BernoulliProbit, ExpectedLikelihood, GaussianKL, Implicit, KLToProcess
from thalweg.kernels import Gaussian
from thalweg.models._search import search

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = (X[:, 0] + 0.5 * rng.normal(size=40) > 0).astype(float)
K = Gaussian(lengthscale=1.0, variance=50.0)(jnp.asarray(X)) + 1e-4 * jnp.eye(40)


def parts(likelihood, step):
    return {
        "oracle": ExpectedLikelihood(likelihood, Y),
        "term": KLToProcess(K),
        "divergence": GaussianKL(),
        "step": Monotone(step),
    }


@pytest.mark.parametrize("step", [1.0, 1e3])
@pytest.mark.parametrize("likelihood", [BernoulliLogit(), BernoulliProbit()])
@pytest.mark.parametrize("options", [None, quick_options()])
def test_the_iterates_are_those_of_the_compiled_loop(likelihood, step, options):
    method, start = parts(likelihood, step), Implicit.prior(K)
    found = search(Descent(**method), start, steps=200, tol=1e-3, compiler_options=options)
    wanted = minimize(x0=start, **method, steps=200, tol=Tolerance(0.0, 1e-3), stride=1)
    assert found.status is wanted.status is Status.CONVERGED
    assert found.steps == wanted.steps
    for column in ("step", "value", "size"):
        np.testing.assert_allclose(found.history[column], wanted.history[column], rtol=1e-10)
    np.testing.assert_allclose(found.history["residual"], wanted.history["residual"], rtol=1e-6)
    for ours, theirs in zip(found.last.x, wanted.x, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.last.objective, wanted.history["value"][-1], rtol=1e-12)


def test_a_tolerance_of_zero_ends_at_rounding():
    found = search(Descent(**parts(BernoulliLogit(), 1.0)), Implicit.prior(K), steps=2000, tol=0.0)
    assert found.status in (Status.STAGNATED, Status.CONVERGED)
    assert found.steps < 500


def test_the_budget_is_kept():
    found = search(Descent(**parts(BernoulliLogit(), 1.0)), Implicit.prior(K), steps=3, tol=0.0)
    assert found.status is Status.STEPS_SPENT
    assert found.steps == len(found.history["step"]) == 3


def test_where_nothing_is_accepted_the_start_is_returned():
    nowhere_else = lambda x: jnp.where(x == 0.0, x, jnp.nan)
    found = search(Descent(nowhere_else, step=Monotone()), jnp.array(0.0), steps=10, tol=0.0)
    assert found.status is Status.DIVERGED
    assert found.steps == 0
    assert float(found.last.x) == 0.0


def test_an_interruption_keeps_what_was_found(monkeypatch):
    class Impatient:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def show(self, step, history):
            if step == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("thalweg.models._search.Bar", Impatient)
    found = search(Descent(**parts(BernoulliLogit(), 1.0)), Implicit.prior(K), steps=9, tol=0.0, progress=True)
    assert found.status is Status.INTERRUPTED
    assert found.steps == 2

"""What calls of the kernel estimators cost, by what they compile and how often they solve for a block."""

import jax
import numpy as np
import pytest

from thalweg import KernelClassifier, KernelRegressor
from thalweg.kernels import Gaussian
from thalweg.machines import DSG, Auto

X = np.random.default_rng(0).normal(size=(300, 3))
T = X[:, 0] + np.sin(X[:, 1])


@pytest.fixture
def compiled():
    """The names of the programs that XLA compiles during a test."""
    programs = []

    def note(event, seconds, *, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield programs
    jax.monitoring.unregister_event_duration_listener(note)


class Counted(Gaussian):
    """A Gaussian kernel that counts the entries it is evaluated for."""

    def profile(self, squared):
        entries.append(np.size(squared))
        return super().profile(squared)


entries = []


def test_single_rows_of_a_stream_take_one_row_of_the_kernel_matrix():
    """The whole block is solved for now and then, when it has grown by a share."""
    model = KernelRegressor(Counted(1.0), alpha=0.1, random_state=0).partial_fit(X[:100], T[:100])
    whole = []
    for i in range(100, 160):
        entries.clear()
        model.partial_fit(X[i : i + 1], T[i : i + 1])
        whole.append(max(entries) > 100 * 100 / 2)
    assert sum(whole) <= 8
    assert model.n_features_used_ == 160
    at_once = KernelRegressor(Gaussian(1.0), alpha=0.1).fit(X[:160], T[:160])
    assert model.score(X[200:], T[200:]) > at_once.score(X[200:], T[200:]) - 0.03


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_another_number_of_rows_compiles_nothing(compiled, loss):
    if jax.default_backend() != "cpu":
        pytest.skip("on a device programs are compiled")
    act = lambda rows: KernelRegressor(loss=loss, random_state=0).fit(X[:rows], T[:rows]).predict(X)
    act(30)
    compiled.clear()
    act(36)
    assert not compiled


def test_a_stream_of_random_features_is_compiled_for_its_first_batches_alone(compiled):
    model = KernelClassifier(Gaussian(1.0), alpha=0.1, method=DSG(block_size=8, batch_size=50), random_state=0)
    for part in np.split(np.arange(300), 6):
        compiled.clear()
        model.partial_fit(X[part], T[part] > 0, classes=[False, True])
    assert not compiled
    model.predict(X)
    compiled.clear()
    model.predict(X)
    assert not compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Auto(batch_size=1, features="orthogonal"), Auto(features="orthogonal"), DSG(batch_size=1)]
)
def test_eighty_rows_are_learned_from_by_small_batches(method):
    y = (T[:80] > 0).astype(int)
    assert KernelClassifier(method=method, random_state=0).fit(X[:80], y).score(X[:80], y) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("edge", [750, 2048, 8192])
def test_the_error_has_no_cliffs(edge):
    """Just below and just above a number of rows at which something else happens errors are alike."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(edge + 1100, 4))
    truth = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = truth + 0.3 * rng.normal(size=len(x))
    errors = []
    for rows in (edge - 50, edge + 50):
        found = KernelRegressor(random_state=0).fit(x[:rows], y[:rows]).predict(x[edge + 100 :])
        errors.append(np.sqrt(np.mean((found - truth[edge + 100 :]) ** 2 + 0.3**2)))
    assert errors[1] < 1.05 * errors[0]

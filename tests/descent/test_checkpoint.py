"""Checkpoints: a run that was killed goes on and ends exactly where it would have ended."""

import importlib
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.descent import FISTA, L1, Checkpoint, Plateau, PolyakRuppert, Status, Steps, minimize
from thalweg.descent.programs import fingerprint
from thalweg.errors import FileFormatError
from thalweg.oracles import SVRG, MiniBatch

A = np.random.default_rng(0).normal(size=(40, 6))
b = A @ np.ones(6)


def squares(x, batch):
    return 0.5 * (batch[0] @ x - batch[1]) ** 2


def oracle():
    return MiniBatch(squares, (A, b), 4, replacement=False)


OPTIONS = {"term": L1(0.01), "step": 0.01, "average": PolyakRuppert(), "key": jax.random.key(5), "tol": Plateau()}


def test_a_run_in_two_parts_equals_a_run_in_one(tmp_path):
    path = tmp_path / "run.thalweg"
    run = lambda **options: minimize(SVRG(oracle(), 9), np.zeros(6), steps=60, engine="host", **OPTIONS, **options)
    whole = run()
    stop = lambda snapshot: snapshot.step >= 25
    first = run(callback=stop, checkpoint=path)
    assert first.status is Status.STOPPED_BY_CALLBACK
    second = run(checkpoint=path)
    np.testing.assert_array_equal(whole.x, second.x)
    assert (second.steps, second.work, second.status) == (whole.steps, whole.work, whole.status)
    for name in ("step", "value", "residual", "size", "work"):
        np.testing.assert_array_equal(whole.history[name], second.history[name])


def test_a_finished_run_is_not_run_again(tmp_path):
    path = tmp_path / "run.thalweg"
    first = minimize(oracle(), np.zeros(6), steps=30, checkpoint=path, engine="host", **OPTIONS)
    seen = []
    again = minimize(oracle(), np.zeros(6), steps=30, checkpoint=path, callback=seen.append, engine="host", **OPTIONS)
    assert seen == []
    np.testing.assert_array_equal(first.x, again.x)


def test_a_converged_run_is_taken_up_only_by_a_stricter_rule(tmp_path):
    path = tmp_path / "run.thalweg"
    # So badly scaled that much is left after the first run.
    valley = lambda x: 1 + jnp.sum((A @ (x * 0.75 ** np.arange(6)) - b) ** 2)
    run = lambda tol: minimize(valley, np.zeros(6), tol=tol, checkpoint=path, engine="host")
    first, again, further = run(1e-2), run(1e-2), run(1e-6)
    assert first.status is again.status is further.status is Status.CONVERGED
    assert first.steps == again.steps < further.steps


def test_a_checkpoint_that_cannot_be_written_is_found_out_before_the_run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises((OSError, FileFormatError)):
        minimize(oracle(), np.zeros(6), checkpoint=folder, **OPTIONS)


def _power(x, p):
    return jnp.sum(x**p)


def _nested(factor):
    return lambda x: jnp.sum((lambda y: factor * y)(x))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(_power, p=2), partial(_power, p=3)),
        (_nested(2.0), _nested(3.0)),
        (lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y + 2)(x)),
        (
            (lambda options: lambda x: options["a"] * x)({"a": 1}),
            (lambda options: lambda x: options["a"] * x)({"a": 2}),
        ),
        (L1(1.0).value, L1(2.0).value),
        (jax.jit(lambda x: 2 * x), jax.jit(lambda x: 3 * x)),
        (lambda x, a=1: a * x, lambda x, a=2: a * x),
        (jnp.sin, jnp.cos),
    ],
)
def test_functions_that_differ_have_fingerprints_that_differ(one, other):
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


def test_the_same_function_made_twice_has_one_fingerprint():
    assert fingerprint(_nested(2.0)) == fingerprint(_nested(2.0))
    assert fingerprint(partial(_power, p=2)) == fingerprint(partial(_power, p=2))


def test_another_run_does_not_take_up_the_checkpoint(tmp_path):
    path = tmp_path / "run.thalweg"
    minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **OPTIONS)
    with pytest.raises(FileFormatError, match=r"belongs to another run: it has term=L1.* this run has term=Zero"):
        minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **{**OPTIONS, "term": None})
    with pytest.raises(FileFormatError, match=r"belongs to another run: it has x0="):
        minimize(oracle(), np.ones(6), steps=10, checkpoint=path, engine="host", **OPTIONS)
    with pytest.raises(FileFormatError, match=r"belongs to another run: it has term=L1"):
        minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **{**OPTIONS, "term": L1(0.5)})
    other = MiniBatch(lambda x, batch: 0.7 * (batch[0] @ x - batch[1]) ** 2, (A, b), 4, replacement=False)
    with pytest.raises(FileFormatError, match=r"belongs to another run: it has oracle=MiniBatch"):
        minimize(other, np.zeros(6), steps=10, checkpoint=path, engine="host", **OPTIONS)
    options = {**OPTIONS, "key": jax.random.key(6)}
    with pytest.raises(FileFormatError, match="key"):
        minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **options)


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path):
    path = tmp_path / "run.thalweg"
    minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **OPTIONS)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileFormatError, match="damaged"):
        minimize(oracle(), np.zeros(6), steps=10, checkpoint=path, engine="host", **OPTIONS)


def test_a_missing_folder_is_found_out_before_the_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        minimize(oracle(), np.zeros(6), checkpoint=tmp_path / "no" / "run.thalweg", **OPTIONS)
    with pytest.raises(ValueError, match="every of Checkpoint must be a number of at least 0, found -1"):
        Checkpoint(tmp_path / "run.thalweg", every=-1)


PROBLEM = """
    import jax, jax.numpy as jnp, numpy as np
    A = np.random.default_rng(0).normal(size=(40, 6))
    b = A @ np.ones(6)
    f = lambda x: 0.5 * jnp.sum((A @ x - b) ** 2)
"""
SCRIPT = """
    import sys, jax
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from problem import f
    from thalweg.descent import FISTA, L1, Checkpoint, Steps, minimize
    minimize(f, jnp.zeros(6), term=L1(0.1), step=1e-6, momentum=FISTA(), steps=int(sys.argv[2]), stride=100,
             tol=Steps(1e12), callback=lambda snapshot: None, checkpoint=Checkpoint(sys.argv[1], every=0.0))
"""


@pytest.mark.slow
def test_a_run_survives_kill_9(tmp_path, monkeypatch):
    path = tmp_path / "run.thalweg"
    (tmp_path / "problem.py").write_text(textwrap.dedent(PROBLEM))
    (tmp_path / "run.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.syspath_prepend(tmp_path)
    steps = 400_000
    command = [sys.executable, str(tmp_path / "run.py"), str(path), str(steps)]
    kills = 0
    for _ in range(2):
        written = path.stat().st_mtime_ns if path.exists() else None
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if path.exists() and path.stat().st_mtime_ns != written:
                break
            time.sleep(0.05)
        time.sleep(0.2)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == 2
    f = importlib.import_module("problem").f
    options = {"term": L1(0.1), "step": 1e-6, "momentum": FISTA(), "stride": 100, "tol": Steps(1e12)}
    resumed = minimize(f, np.zeros(6), steps=steps, checkpoint=path, **options)
    whole = minimize(f, np.zeros(6), steps=steps, **options)
    assert resumed.steps == whole.steps == steps
    np.testing.assert_array_equal(resumed.x, whole.x)
    np.testing.assert_array_equal(resumed.history["value"], whole.history["value"])

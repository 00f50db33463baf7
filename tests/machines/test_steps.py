"""Steps along blocks: the methods of the papers iterate by iterate, lazy shrinkage, and how often they are compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from thalweg.descent.steps import Polynomial
from thalweg.kernels import Gaussian, RandomFeatures
from thalweg.machines import (
    Batch,
    Capped,
    Checked,
    Frequencies,
    LogisticLoss,
    Machine,
    New,
    Points,
    SoftmaxLoss,
    SquaredLoss,
    Table,
    Uniform,
    ValidatedStep,
    empty,
    run,
)
from thalweg.machines.expansion import evaluate
from thalweg.machines.learner import Learner

D, B, SIZE, STEPS = 3, 24, 5, 20
LENGTHSCALE, VARIANCE = 1.3, 1.7
RULES = {
    "dsg": (New(), reference.new),
    "udsg": (Uniform(2, 3), reference.uniform(2, 3)),
    "cdsg": (Checked(3.0), reference.checked(3.0)),
    "capped": (Capped(4), reference.capped(4)),
    "validated": (Capped(4), reference.capped(4)),
}
OUTPUTS = {"Squared": 2, "Logistic": 1, "Softmax": 3}
LOSSES = {"Squared": SquaredLoss, "Logistic": LogisticLoss, "Softmax": SoftmaxLoss}
STEP = Polynomial(0.8, power=0.5, scale=5.0)


def sizes(count):
    return 0.8 * (1 + count / 5.0) ** -0.5


def coordinates(kind):
    kernel = Gaussian(LENGTHSCALE, VARIANCE)
    if kind == "landmarks":
        return Points(kernel, SIZE), reference.Landmarks(SIZE, LENGTHSCALE, VARIANCE)
    features = RandomFeatures(kernel, jax.random.key(3), D, SIZE)
    return Frequencies(features, keep=kind == "stored"), reference.Frequencies(
        jax.jit(lambda i: features.block(i)), LENGTHSCALE, VARIANCE
    )


def batches(loss, count=STEPS):
    """Batches whose targets swing from one side to the other, so that the mean gradient turns and old blocks pay."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, B, D))
    weights = rng.uniform(0.5, 2.0, size=(count, B))
    weights[:, -3:] = 0  # padding
    swing = 1.5 * np.sin(np.arange(count))[:, None] + np.sin(2 * x[:, :, 0]) + 0.3 * rng.normal(size=(count, B))
    if loss == "Squared":
        y = np.stack([swing, -swing + 1], axis=2)
    elif loss == "Logistic":
        y = (swing > 0)[:, :, None].astype(float)
    else:
        y = np.eye(3)[np.digitize(swing, [-0.5, 0.5])]
    return Batch(x, y, weights)


def machine(parts, loss, rule, ridge=0.1, precondition=True, step=STEP):
    return Machine(parts, LOSSES[loss](), rule, step, jnp.asarray(ridge), precondition)


def draw_with(key):
    return lambda below: int(jax.random.randint(key, (), 0, below))


FAST = [
    ("cdsg", "landmarks", True, "Squared"),
    ("cdsg", "random", False, "Logistic"),
    ("validated", "stored", True, "Softmax"),
]
SLOW = [
    (name, kind, precondition, loss)
    for name in RULES
    for kind in ("random", "stored", "landmarks")
    for precondition in (False, True)
    for loss in LOSSES
    if (name, kind, precondition, loss) not in FAST
]
CASES = FAST + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]


@pytest.mark.parametrize(("name", "kind", "precondition", "loss"), CASES)
def test_methods_equal_plain_numpy_iterate_by_iterate(name, kind, precondition, loss):
    rule, plain_rule = RULES[name]
    parts, plain_parts = coordinates(kind)
    ridge = 0.1
    data, keys = batches(loss), jax.random.split(jax.random.key(5), STEPS)
    found = empty(parts, D, OUTPUTS[loss], STEPS, jnp.float64)
    plain = reference.Machine(plain_parts, loss, ridge, precondition, OUTPUTS[loss])
    method = machine(parts, loss, rule, ridge, precondition, ValidatedStep() if name == "validated" else STEP)
    # Frequencies made anew are float32 numbers, the same up to rounding in programs that are compiled apart.
    close = {"rtol": 1e-5, "atol": 1e-6} if kind == "random" else {"rtol": 1e-8, "atol": 1e-9}
    taken = []
    for i in range(STEPS):
        batch = Batch(*(part[i : i + 1] for part in data))
        found, record = run(method, found, batch, keys[i : i + 1])
        size = None if name == "validated" else sizes(i)
        k, s = plain.step(*(part[i] for part in data), plain_rule, size, draw_with(keys[i]))
        assert (int(record.block[0]), int(found.used)) == (k, len(plain.blocks))
        assert float(record.size[0]) == pytest.approx(s, rel=close["rtol"], abs=close["atol"])
        m = len(plain.blocks)
        scale, weights, drift = map(np.asarray, (found.scale, found.weights, found.drift))
        np.testing.assert_allclose(scale * weights[:m], plain.weights, **close)
        np.testing.assert_allclose(scale * drift[:m], plain.drifts, **close)
        taken.append(k)
    new_points = np.random.default_rng(1).normal(size=(7, D))
    np.testing.assert_allclose(evaluate(parts, found, new_points), plain.predict(new_points), **close)
    again = len(taken) - len(set(taken))
    assert again == {"dsg": 0, "udsg": 12, "capped": STEPS - 4, "validated": STEPS - 4}.get(name, again)
    assert again > 0 or name == "dsg"
    assert len(set(taken)) > 1


def test_lazy_shrinkage_equals_eager_shrinkage_also_when_the_scale_is_folded():
    """Weights shrink by 0.12 in the first step, by less than a millionth in all; in one scan instead of one by one."""
    parts, plain_parts = coordinates("landmarks")
    ridge = 1.1
    data, keys = batches("Squared"), jax.random.split(jax.random.key(5), STEPS)
    found, records = run(
        machine(parts, "Squared", Uniform(1, 1), ridge, False), empty(parts, D, 2, STEPS, jnp.float64), data, keys
    )
    plain = reference.Machine(plain_parts, "Squared", ridge, False, 2)
    eager = 1.0
    for i in range(STEPS):
        k, s = plain.step(*(part[i] for part in data), reference.uniform(1, 1), sizes(i), draw_with(keys[i]))
        assert (int(records.block[i]), float(records.size[i])) == (k, pytest.approx(s, rel=1e-12))
        eager *= 1 - s * ridge
    assert eager < 1e-6 < float(found.scale)
    m = len(plain.blocks)
    np.testing.assert_allclose(found.scale * found.weights[:m], plain.weights, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found.scale * found.drift[:m], plain.drifts, rtol=1e-9, atol=1e-14)

    # Where sλ ≥ 1 a step forgets all that was, and does not turn it round.
    found, _ = run(
        machine(parts, "Squared", Uniform(1, 1), 5.0, False), empty(parts, D, 2, STEPS, jnp.float64), data, keys
    )
    length = np.abs(found.scale * found.weights).max(axis=(1, 2))
    assert np.count_nonzero(length) == 1
    assert np.isfinite(length).all()


def test_steps_are_compiled_once_for_each_capacity(compiled):
    """24 steps along new blocks need room for 8, 16 and 32 of them; the same steps again compile nothing."""
    rng = np.random.default_rng(0)
    table = Table(rng.normal(size=(24 * 6, D)), rng.normal(size=(24 * 6, 1)), np.ones(24 * 6))
    parts = Points(Gaussian(LENGTHSCALE), 4)

    def learned():
        method = machine(parts, "Squared", New(), 0.1, False)
        learner = Learner(method, empty(parts, D, 1, 1, jnp.float64), 6, 0)
        done = list(learner.learn(table, np.arange(len(table)), 0.1, len(table)))
        assert done == [48] * 3
        return learner

    learner = learned()
    assert (int(learner.expansion.used), learner.expansion.capacity, learner.features) == (24, 32, 96)
    assert len([name for name in compiled if "scanned" in name]) == 3
    compiled.clear()
    np.testing.assert_array_equal(learned().expansion.weights, learner.expansion.weights)
    assert not compiled


def test_run_makes_room_and_says_what_does_not_fit():
    parts, _ = coordinates("landmarks")
    method = machine(parts, "Squared", Uniform(1, 1), 0.1, False)  # whose program a test above has compiled
    data, keys = batches("Squared"), jax.random.split(jax.random.key(0), STEPS)
    start = empty(parts, D, 2, 1, jnp.float64)
    grown, _ = run(method, start, data, keys)
    assert int(grown.used) == STEPS // 2
    assert grown.capacity >= STEPS // 2
    with pytest.raises(ValueError, match=rf"keys must be as many as the batches, {STEPS}, found 2"):
        run(method, start, data, keys[:2])
    with pytest.raises(ValueError, match=rf"batches must have at least block_size={SIZE} rows, .* found 3"):
        run(method, start, Batch(*(part[:, :3] for part in data)), keys)

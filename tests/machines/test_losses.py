"""Losses: their gradients, the bounds they claim, and what smoothing does to a kink."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from thalweg.machines.losses import (
    HingeLoss,
    HuberLoss,
    LogisticLoss,
    Loss,
    QuantileLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
)

C = 3
LABELS = {"zero_one": [0.0, 1.0], "signs": [-1.0, 1.0]}
LOSSES = {
    "squared": (SquaredLoss(), "real"),
    "logistic": (LogisticLoss(), "zero_one"),
    "softmax": (SoftmaxLoss(), "one_hot"),
    "hinge": (HingeLoss(), "signs"),
    "squared_hinge": (SquaredHingeLoss(), "signs"),
    "huber": (HuberLoss(0.7), "real"),
    "quantile": (QuantileLoss(0.8), "real"),
}
KINKED = ("hinge", "quantile")
numbers = st.floats(-30, 30, allow_subnormal=False)
rows = st.lists(numbers, min_size=C, max_size=C).map(np.array)


@st.composite
def points(draw, names=tuple(LOSSES)):
    """A loss, a prediction, and a target that suits the loss."""
    name = draw(st.sampled_from(names))
    loss, kind = LOSSES[name]
    if kind == "real":
        y = draw(rows)
    elif kind == "one_hot":
        y = np.eye(C)[draw(st.integers(0, C - 1))]
    else:
        y = np.array(draw(st.lists(st.sampled_from(LABELS[kind]), min_size=C, max_size=C)))
    return name, loss, draw(rows), y


def on_one_row(function):
    """On NumPy's arrays, for which nothing is compiled; that a device computes the same is tested below."""
    return lambda loss, *rows: function(loss, *(row[None] for row in rows))[0]


value = on_one_row(lambda loss, f, y: loss.value(f, y))
gradient = on_one_row(lambda loss, f, y: loss.gradient(f, y))
smoothed = on_one_row(lambda loss, f, y, dual: loss.smoothed_gradient(f, y, dual))
derivative = jax.jit(lambda loss, f, y: jax.grad(lambda f: loss.value(f[None], y[None])[0])(f))


@settings(max_examples=60, deadline=None)
@given(points())
def test_gradients_are_derivatives_away_from_kinks(point):
    name, loss, f, y = point
    distance = {"hinge": np.abs(y * f - 1), "quantile": np.abs(f - y)}.get(name, np.ones(C))
    found = gradient(loss, f, y)
    apart = distance > 1e-6
    np.testing.assert_allclose(found[apart], np.asarray(derivative(loss, f, y))[apart], rtol=1e-9, atol=1e-12)
    if (distance > 1e-3).all():
        h = 1e-4
        differences = [(value(loss, f + h * e, y) - value(loss, f - h * e, y)) / (2 * h) for e in np.eye(C)]
        np.testing.assert_allclose(found, differences, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(points(), rows)
def test_gradients_are_subgradients_everywhere(point, u):
    """Convexity: ℓ(f + u) ≥ ℓ(f) + ⟨g, u⟩, at kinks as well."""
    _, loss, f, y = point
    for start in (f, y):
        below = value(loss, start, y) + gradient(loss, start, y) @ u
        assert value(loss, start + u, y) >= below - 1e-9 * (1 + abs(float(below)))


@settings(max_examples=60, deadline=None)
@given(points([name for name in LOSSES if name not in KINKED]), rows, st.sampled_from([1e-2, 0.3, 1.0]))
def test_smooth_losses_stay_below_their_curvature(point, u, length):
    _, loss, f, y = point
    u = length * u
    above = value(loss, f, y) + gradient(loss, f, y) @ u + loss.curvature / 2 * (u @ u)
    assert value(loss, f + u, y) <= above + 1e-9 * (1 + abs(float(above)))


def test_curvatures_are_tight():
    """They are attained: half of any would break the bound."""
    u = np.array([1e-2, -1e-2, 0.0])
    at = {
        "squared": (np.zeros(C), np.zeros(C)),
        "logistic": (np.zeros(C), np.zeros(C)),
        # With two of the classes equally likely, and no other, softmax is as curved as it gets: 1/2 along (1, −1).
        "softmax": (np.array([0.0, 0.0, -50.0]), np.eye(C)[0]),
        "squared_hinge": (np.zeros(C), np.ones(C)),
        "huber": (np.zeros(C), np.zeros(C)),
    }
    for name, (f, y) in at.items():
        loss = LOSSES[name][0]
        excess = value(loss, f + u, y) - value(loss, f, y) - gradient(loss, f, y) @ u
        assert excess == pytest.approx(loss.curvature / 2 * (u @ u), rel=1e-3), name


@settings(max_examples=60, deadline=None)
@given(points(["logistic", "softmax", "hinge"]))
def test_gradients_are_no_longer_than_their_bound(point):
    _, loss, f, y = point
    assert np.linalg.norm(gradient(loss, f, y)) <= loss.gradient_bound(C) + 1e-12


def test_bounds_of_gradients_are_attained():
    far = np.array([60.0, -60.0, -60.0])
    assert np.linalg.norm(gradient(SoftmaxLoss(), far, np.eye(C)[1])) == pytest.approx(SoftmaxLoss().gradient_bound(C))
    assert np.linalg.norm(gradient(LogisticLoss(), far, np.array([0.0, 1.0, 1.0]))) == pytest.approx(
        LogisticLoss().gradient_bound(C)
    )
    assert np.linalg.norm(gradient(HingeLoss(), 0 * far, np.ones(C))) == pytest.approx(HingeLoss().gradient_bound(C))
    assert (LogisticLoss().gradient_bound(1), HingeLoss().gradient_bound(1), SoftmaxLoss().gradient_bound(7)) == (
        1,
        1,
        pytest.approx(np.sqrt(2)),
    )
    assert {LOSSES[name][0].gradient_bound(C) for name in ("squared", "squared_hinge", "huber", "quantile")} == {None}


def conjugate(name, y):
    """ℓ* of one output, and the interval where it is finite."""
    if name == "hinge":
        return lambda a: y * a, sorted([-y, 0.0])
    return lambda a: y * a, [-0.8, 0.2]


@settings(max_examples=60, deadline=None)
@given(points(KINKED), st.lists(st.floats(0, 1), min_size=C, max_size=C))
def test_smoothed_gradients_are_arg_maxima(point, parts):
    name, loss, f, y = point
    ends = [conjugate(name, target)[1] for target in y]
    dual = np.array([low + part * (high - low) for (low, high), part in zip(ends, parts, strict=True)])
    found = smoothed(loss, f, y, dual)
    for c in range(C):
        star, (low, high) = conjugate(name, y[c])
        objective = lambda a, c=c, star=star: -(a * f[c] - star(a) - (a - dual[c]) ** 2 / 2)
        best = minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
        candidates = [(objective(a), a) for a in (low, high, best.x)]
        assert found[c] == pytest.approx(min(candidates)[1], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(points(KINKED), st.floats(0, 1), st.booleans())
def test_smoothing_leaves_a_solution_where_it_is(point, part, at_the_kink):
    """At a solution the dual is a subgradient, any one of them at the kink itself."""
    name, loss, f, y = point
    dual = gradient(loss, f, y)
    if at_the_kink:
        f = y  # y·y = 1, the end of the margin; no residual
        dual = np.array([low + part * (high - low) for low, high in (conjugate(name, target)[1] for target in y)])
    np.testing.assert_allclose(smoothed(loss, f, y, dual), dual, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in KINKED])
def test_smooth_losses_need_no_smoothing(name):
    loss, _ = LOSSES[name]
    f, y, dual = np.array([0.3, -2.0, 5.0]), np.eye(C)[1], np.array([9.0, 9.0, 9.0])
    np.testing.assert_array_equal(smoothed(loss, f, y, dual), gradient(loss, f, y))


def every_part(loss, f, y, dual):
    return loss.value(f, y), loss.gradient(f, y), loss.smoothed_gradient(f, y, dual)


@pytest.mark.parametrize("name", LOSSES)
def test_single_precision_stays_single_and_extremes_stay_finite_on_host_and_device(name):
    loss, kind = LOSSES[name]
    rng = np.random.default_rng(0)
    f = np.concatenate([[[1e4, -1e4, 0.0]], 2 * rng.normal(size=(40, C))]).astype(np.float32)
    labels = {"real": rng.normal(size=(41, C)), "one_hot": np.eye(C)[rng.integers(C, size=41)]}
    y = labels.get(kind, rng.choice(LABELS.get(kind, [0.0]), size=(41, C))).astype(np.float32)
    dual = rng.uniform(-1, 1, size=f.shape).astype(np.float32)
    compiled, plain = jax.jit(every_part)(loss, f, y, dual), every_part(loss, f, y, dual)
    for part, mine in zip(compiled, plain, strict=True):
        assert part.dtype == mine.dtype == jnp.float32
        assert np.isfinite(part).all()
        np.testing.assert_allclose(part, mine, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_mean_pinball_loss_is_least_at_the_quantile(q):
    y = np.random.default_rng(0).exponential(size=(401, 1))
    grid = np.linspace(0, 5, 501)
    means = [np.mean(QuantileLoss(q).value(np.full_like(y, at), y)) for at in grid]
    assert grid[np.argmin(means)] == pytest.approx(np.quantile(y, q), abs=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HuberLoss(0.0), "width of HuberLoss must be a finite number above 0, found 0.0"),
        (lambda: QuantileLoss(1.0), "q of QuantileLoss must be a finite number above 0 below 1, found 1.0"),
        (lambda: QuantileLoss("half"), "q of QuantileLoss must be a finite number above 0 below 1, found 'half'"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("method", ["value", "gradient"])
def test_a_loss_must_define_its_parts(method):
    with pytest.raises(NotImplementedError, match=rf"Loss must define {method}\(f, y\)"):
        getattr(Loss(), method)(None, None)

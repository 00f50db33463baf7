"""Divergences: each closed-form step against brute force, residuals, domains, and the refusal of other pairs."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from threadpoolctl import threadpool_limits

from thalweg import trees
from thalweg.descent import (
    L1,
    L2,
    BernoulliFamily,
    Box,
    Bregman,
    BurgEntropy,
    CategoricalFamily,
    Descent,
    DiagonalMetric,
    Euclidean,
    GaussianFamily,
    KLFromCentre,
    KLToCentre,
    KLToPrior,
    L1Ball,
    LogBarrier,
    MatrixMetric,
    Moments,
    NaturalGradient,
    NegativeEntropy,
    NonNegative,
    NuclearNorm,
    PerLeaf,
    PoissonFamily,
    Simplex,
    SquaredL2,
    Term,
    Zero,
    closed_form,
    closed_forms,
)
from thalweg.errors import IncompatiblePartsError

D = 4
SIZE = 0.7


def positive(rng):
    return rng.uniform(0.2, 2.0, size=D)


def free(rng):
    return rng.normal(size=D)


def simplex(rng):
    return rng.dirichlet(np.ones(D))


def metric(rng):
    root = rng.normal(size=(D, D))
    return root @ root.T + np.eye(D)


half_square = lambda p: lambda x: 0.5 * jnp.sum(jnp.abs(x) ** p) ** (2 / p)
p_norm = Bregman(half_square(1.5), inverse=jax.grad(half_square(3.0)))
weights = np.array([0.5, 1.0, 2.0, 4.0])
METRIC = metric(np.random.default_rng(0))

PAIRS = [
    (Euclidean(), L1(0.3), free, None),
    (DiagonalMetric(weights), Zero(), free, None),
    (DiagonalMetric(weights), L1(0.3), free, None),
    (DiagonalMetric(2.0), Box(-0.2, 0.4), free, (-0.2, 0.4)),
    (MatrixMetric(METRIC), Zero(), free, None),
    (MatrixMetric(METRIC), SquaredL2(0.6), free, None),
    (NegativeEntropy(), PerLeaf(L1(0.2)), positive, (1e-9, None)),
    (BurgEntropy(), PerLeaf(Box(0.3, 0.9)), positive, (0.3, 0.9)),
    (BurgEntropy(), LogBarrier(np.array([0.1, 0.2, 0.3, 0.4])), positive, (1e-9, None)),
    (BurgEntropy(), Box(0.1, np.inf), positive, (0.1, None)),
    (NegativeEntropy(), Zero(), positive, (1e-9, None)),
    (NegativeEntropy(), NonNegative(), positive, (1e-9, None)),
    (NegativeEntropy(), L1(0.4), positive, (1e-9, None)),
    (NegativeEntropy(), L1(weights), positive, (1e-9, None)),
    (NegativeEntropy(), Box(0.3, 0.9), positive, (0.3, 0.9)),
    (NegativeEntropy(), Simplex(), simplex, "simplex"),
    (NegativeEntropy(), L1Ball(0.8), positive, "ball"),
    (BurgEntropy(), Zero(), positive, (1e-9, None)),
    (BurgEntropy(), NonNegative(), positive, (1e-9, None)),
    (BurgEntropy(), L1(0.4), positive, (1e-9, None)),
    (BurgEntropy(), Box(0.3, 0.9), positive, (0.3, 0.9)),
    (BurgEntropy(), LogBarrier(0.5), positive, (1e-9, None)),
    (p_norm, Zero(), free, None),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Brute force on matrices this small waits for threads longer than it computes."""
    with threadpool_limits(1, user_api="blas"):
        yield


def p_norm_slope(x):
    return np.sign(x) * np.abs(x) ** 0.5 * np.sum(np.abs(x) ** 1.5) ** (1 / 3)


# φ and its gradient, of which D is the distance to the tangent.
POTENTIALS = {
    Euclidean: (lambda x, _: x @ x / 2, lambda x, _: x),
    DiagonalMetric: (lambda x, d: np.sum(d.weights * x**2) / 2, lambda x, d: d.weights * x),
    MatrixMetric: (lambda x, _: x @ METRIC @ x / 2, lambda x, _: METRIC @ x),
    NegativeEntropy: (lambda x, _: np.sum(x * np.log(x) - x), lambda x, _: np.log(x)),
    BurgEntropy: (lambda x, _: -np.sum(np.log(x)), lambda x, _: -1 / x),
    Bregman: (lambda x, _: np.sum(np.abs(x) ** 1.5) ** (4 / 3) / 2, lambda x, _: p_norm_slope(x)),
}
# h and its gradient, with an indicator left to the brute-force minimiser's own constraints.
SMOOTH = {
    L1: (lambda x, h: np.sum(h.weight * np.abs(x)), lambda x, h: h.weight * np.sign(x)),
    SquaredL2: (lambda x, h: np.sum(h.weight * x**2) / 2, lambda x, h: h.weight * x),
    LogBarrier: (lambda x, h: -np.sum(h.weight * np.log(x)), lambda x, h: -h.weight / x),
}


def distance(divergence, x, centre):
    """D and its gradient, in NumPy."""
    divergence, (value, slope) = jax.tree.map(np.asarray, divergence), POTENTIALS[type(divergence)]
    at = slope(centre, divergence)
    ahead = value(x, divergence) - value(centre, divergence) - at @ (x - centre)
    return ahead, slope(x, divergence) - at


def objective(divergence, term):
    """(1) and its gradient, in NumPy."""
    term = jax.tree.map(np.asarray, term.terms if isinstance(term, PerLeaf) else term)
    h, slope = SMOOTH.get(type(term), (lambda x, _: 0.0, lambda x, _: np.zeros(D)))

    def value(x, centre, gradient, size):
        ahead, steep = distance(divergence, x, centre)
        return gradient @ x + h(x, term) + ahead / size, gradient + slope(x, term) + steep / size

    return value


@eqx.filter_jit
def taken(divergence, term, size, centre, gradient):
    """The size that is admitted, and the step of that size."""
    size = divergence.admissible(centre, gradient, size, term)
    return size, divergence.step(centre, gradient, size, term)


SEEDS = 2


@cache
def centres_and_steps():
    """For each pair and seed a centre, a gradient, the admitted size, the step and its D: one program for all."""
    centres = [np.stack([point(np.random.default_rng(seed)) for seed in range(SEEDS)]) for _, _, point, _ in PAIRS]
    gradients = 0.4 * np.stack([free(np.random.default_rng(SEEDS + seed)) for seed in range(SEEDS)])
    parts = [(divergence, term) for divergence, term, _, _ in PAIRS]

    @eqx.filter_jit
    def together(parts, centres, gradients):
        def step(divergence, term, centre, gradient):
            size, x = taken(divergence, term, jnp.asarray(SIZE), centre, gradient)
            return size, x, divergence.value(x, centre)

        each = lambda pair, centre: jax.vmap(partial(step, *pair))(centre, gradients)
        return [each(pair, centre) for pair, centre in zip(parts, centres, strict=True)]

    steps = jax.tree.map(np.asarray, together(parts, centres, gradients))
    return [(centre, gradients, *found) for centre, found in zip(centres, steps, strict=True)]


def name_of(pair):
    return "-".join(type(part).__name__ for part in PAIRS[pair][:2])


@pytest.mark.parametrize("pair", range(len(PAIRS)), ids=name_of)
def test_step_is_the_minimiser(pair):
    divergence, term, _, domain = PAIRS[pair]
    together = objective(divergence, term)
    for centre, gradient, size, step, ahead in zip(*centres_and_steps()[pair], strict=True):
        assert ahead == pytest.approx(distance(divergence, step, centre)[0], rel=1e-8, abs=1e-12)
        value = lambda x: together(x, centre, gradient, size)  # noqa: B023
        constraints, bounds = (), None
        if domain == "simplex":
            constraints, bounds = {"type": "eq", "fun": lambda x: np.sum(x) - 1}, [(1e-9, None)] * D
        elif domain == "ball":
            constraints, bounds = {"type": "ineq", "fun": lambda x: 0.8 - np.sum(x)}, [(1e-9, None)] * D
        elif domain is not None:
            bounds = [domain] * D
        best = scipy.optimize.minimize(
            value,
            centre if bounds is None else np.clip(centre, bounds[0][0], bounds[0][1]),
            jac=True,
            method="SLSQP",
            bounds=bounds,
            constraints=constraints,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        assert value(step)[0] <= best.fun + 1e-10
        np.testing.assert_allclose(step, best.x, atol=2e-5)


def gaussian(rng):
    mean, precision = rng.normal(size=2), np.linalg.inv(metric(rng)[:2, :2])
    return Moments(precision @ mean, -precision / 2)


FAMILIES = [
    (BernoulliFamily(), lambda rng: rng.normal(size=3)),
    (CategoricalFamily(), lambda rng: rng.normal(size=(2, 3))),
    (PoissonFamily(), lambda rng: rng.normal(size=3)),
    (GaussianFamily(), gaussian),
]
named = pytest.mark.parametrize(("family", "draw"), FAMILIES, ids=lambda part: type(part).__name__)


def symmetric(tree):
    return jax.tree.map(
        lambda leaf: (leaf + leaf.T) / 2 if leaf.ndim == 2 and leaf.shape[0] == leaf.shape[1] else leaf, tree
    )


MEANS = {
    BernoulliFamily: scipy.special.expit,
    CategoricalFamily: lambda natural: np.exp(natural) / (1 + np.exp(natural).sum(axis=-1, keepdims=True)),
    PoissonFamily: np.exp,
}


@named
def test_families_invert_their_maps_and_agree_with_autodiff(family, draw):
    @jax.jit
    def maps(natural, tangent):
        mean = family.mean(natural)
        found = mean, family.natural(mean), family.inverse_fisher(natural, family.fisher(natural, tangent))
        return found, jax.grad(family.log_partition)(natural), family.is_natural(natural) & family.is_mean(mean)

    for seed in range(3):
        natural = draw(np.random.default_rng(seed))
        tangent = symmetric(draw(np.random.default_rng(seed + 10)))
        found, slope, inside = maps(natural, tangent)
        assert bool(inside)
        if type(family) in MEANS:
            np.testing.assert_allclose(found[0], MEANS[type(family)](np.asarray(natural)), rtol=1e-12)
        for ours, exact, rtol in zip(found, (slope, natural, tangent), (1e-10, 1e-8, 1e-7), strict=True):
            for leaf, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
                np.testing.assert_allclose(leaf, wanted, rtol=rtol, atol=rtol / 100)


def test_kl_of_gaussians_is_the_textbook_one():
    rng = np.random.default_rng(0)
    m0, m1 = rng.normal(size=2), rng.normal(size=2)
    V0, V1 = metric(rng)[:2, :2], metric(rng)[:2, :2]
    family = GaussianFamily()
    ours = float(jax.jit(lambda *pairs: family.kl(*(family.from_moments(*pair) for pair in pairs)))((m0, V0), (m1, V1)))
    P = np.linalg.inv(V1)
    exact = 0.5 * (np.trace(P @ V0) - 2 + (m1 - m0) @ P @ (m1 - m0) + np.log(np.linalg.det(V1) / np.linalg.det(V0)))
    assert ours == pytest.approx(exact, rel=1e-10)


HALF, ONE = np.array(0.5), np.array(1.0)


KINDS = {"to": KLToCentre, "from": KLFromCentre, "natural": NaturalGradient, "prior": KLToCentre}


@named
def test_family_steps_are_the_minimisers(family, draw):
    """Gradients of (1) with respect to λ vanish at the step of each kind, and random moves do not lower (1)."""
    rng = np.random.default_rng(5)
    centre, prior = draw(rng), draw(rng)
    gradient = jax.tree.map(lambda leaf: 0.1 * np.asarray(leaf), symmetric(draw(rng)))
    divergences = {kind: made(family) for kind, made in KINDS.items()}
    terms = {kind: KLToPrior(family, prior) if kind == "prior" else Zero() for kind in KINDS}

    @jax.jit
    def steps():
        return {kind: taken(divergences[kind], terms[kind], jnp.asarray(HALF), centre, gradient) for kind in KINDS}

    def look_at(kind, size, x):
        def value(x):
            coordinates = family.mean(x) if isinstance(divergences[kind], KLToCentre) else x
            ahead = divergences[kind].value(x, centre) / size
            return trees.inner(gradient, coordinates) + terms[kind].value(x) + ahead

        return *jax.value_and_grad(value)(x), family.is_natural(x)

    @jax.jit
    def look(sizes, points):
        return {kind: look_at(kind, sizes[kind], points[kind]) for kind in KINDS}

    found = jax.tree.map(np.asarray, steps())
    sizes, points = ({kind: pair[part] for kind, pair in found.items()} for part in (0, 1))
    best = look(sizes, points)
    for kind, (_, slope, _) in best.items():
        assert np.linalg.norm(trees.flattened(symmetric(jax.tree.map(np.asarray, slope)))) < 1e-9, kind
    for seed in range(10):
        move = symmetric(jax.tree.map(np.asarray, draw(np.random.default_rng(seed))))
        moved = {kind: jax.tree.map(lambda leaf, by: leaf + 1e-3 * by, points[kind], move) for kind in KINDS}
        for kind, (value, _, inside) in look(sizes, moved).items():
            assert not inside or value >= best[kind][0] - 1e-13, kind


@eqx.filter_jit
def residuals(divergence, centre, gradient):
    """The residual of a step with h = 0, its norm, and the norm where the step stays."""
    size, x = taken(divergence, Zero(), HALF, centre, gradient)
    norms = (divergence.residual_norm(centre, end, size) for end in (x, centre))
    return divergence.residual(centre, x, size), *norms


@pytest.mark.parametrize(("divergence", "term", "point", "domain"), PAIRS, ids=lambda p: type(p).__name__ if p else "")
def test_residual_is_the_gradient_when_nothing_else_acts(divergence, term, point, domain):
    rng = np.random.default_rng(1)
    centre, gradient = point(rng), 0.3 * free(rng)
    residual, norm, at_rest = residuals(divergence, centre, gradient)
    np.testing.assert_allclose(residual, gradient, rtol=1e-8, atol=1e-10)
    assert norm > 0
    assert float(at_rest) == pytest.approx(0, abs=1e-12)


def test_divergences_are_non_negative_and_zero_at_equality():
    divergences = NegativeEntropy(), BurgEntropy(), DiagonalMetric(weights), MatrixMetric(METRIC), p_norm
    x, y = np.random.default_rng(0).uniform(0.2, 2.0, size=(2, 1000, D))
    values = jax.jit(jax.vmap(lambda x, y: [(d.value(x, y), d.value(x, x)) for d in divergences]))(x, y)
    for apart, equal in values:
        assert np.all(np.asarray(apart) >= -1e-12)
        assert np.all(np.abs(equal) < 1e-12)


def test_exponentiated_gradient_survives_huge_gradients_and_zeros():
    centre = np.array([0.5, 0.5, 0.0])
    _, step = taken(NegativeEntropy(), Simplex(), ONE, centre, np.array([1e6, -1e6, -1e9]))
    np.testing.assert_allclose(step, [0.0, 1.0, 0.0], atol=1e-300)
    assert step[0] > 0 == step[2]


@pytest.mark.parametrize(
    ("divergence", "centre", "gradient"),
    [
        (BurgEntropy(), np.array([1.0, 2.0]), np.array([-5.0, 0.1])),
        (KLFromCentre(PoissonFamily()), np.array([0.0, 1.0]), np.array([7.0, 0.1])),
        (KLFromCentre(BernoulliFamily()), np.array([0.0, 1.0]), np.array([3.0, -2.0])),
    ],
)
def test_a_step_without_minimiser_is_shortened(divergence, centre, gradient):
    size, step = taken(divergence, Zero(), ONE, centre, gradient)
    assert 0 < size < 1
    assert np.log2(size) == int(np.log2(size))
    assert np.all(np.isfinite(step))
    descent = Descent(lambda x: gradient @ x, divergence=divergence, step=1.0)
    _, info = jax.jit(lambda x: descent.update(descent.init(x), jax.random.key(0)))(centre)
    assert info.size == size


def test_a_gaussian_step_keeps_a_positive_definite_precision():
    family = GaussianFamily()
    centre = Moments(np.zeros(2), -np.eye(2) / 2)
    gradient = Moments(np.zeros(2), -3.0 * np.eye(2))
    for divergence in (KLToCentre(family), NaturalGradient(family), KLFromCentre(family)):
        _, step = taken(divergence, Zero(), ONE, centre, gradient)
        assert np.all(np.linalg.eigvalsh(-2 * np.asarray(step.second)) > 0)


def test_leaf_by_leaf_in_an_entropic_geometry():
    x = {"p": np.array([0.2, 0.8]), "rate": np.array([2.0])}
    g = {"p": np.array([1.0, 0.0]), "rate": np.array([0.5])}
    term = PerLeaf({"p": Simplex(), "rate": L1(0.1)})
    _, step = taken(NegativeEntropy(), term, np.array(0.3), x, g)
    shares = x["p"] * np.exp(-0.3 * g["p"])
    np.testing.assert_allclose(step["p"], shares / shares.sum())
    np.testing.assert_allclose(step["rate"], 2.0 * np.exp(-0.3 * 0.6))


def test_pairs_without_a_closed_form_are_refused_with_what_works():
    with pytest.raises(IncompatiblePartsError) as refused:
        Descent(lambda x: jnp.sum(x), term=NuclearNorm(1.0), divergence=NegativeEntropy(), step=0.1)
    message = str(refused.value)
    assert "divergence=NegativeEntropy" in message
    assert "term=NuclearNorm" in message
    for name in ("Simplex", "Box", "L1", "Euclidean"):
        assert name in message
    with pytest.raises(IncompatiblePartsError, match="separable"):
        Descent(lambda x: jnp.sum(x), term=L2(1.0), divergence=DiagonalMetric(weights), step=0.1)
    prior = KLToPrior(BernoulliFamily(), np.zeros(3))
    with pytest.raises(IncompatiblePartsError, match="KLToPrior"):
        Descent(lambda x: jnp.sum(x), term=prior, step=0.1)
    assert ("NegativeEntropy", "Simplex", "") in closed_forms()
    with pytest.raises(IncompatiblePartsError, match="SquaredL2 with one weight"):
        Descent(lambda x: jnp.sum(x), term=SquaredL2(np.ones(D)), divergence=MatrixMetric(METRIC), step=0.1)
    with pytest.raises(IncompatiblePartsError, match="PerLeaf of these"):
        Descent(lambda x: jnp.sum(x), term=PerLeaf(L2(1.0)), divergence=NegativeEntropy(), step=0.1)
    with pytest.raises(IncompatiblePartsError, match="KLToPrior of the same family"):
        Descent(lambda x: jnp.sum(x), term=prior, divergence=KLToCentre(PoissonFamily()), step=0.1)


def test_a_pair_can_be_registered_from_outside_and_the_specific_one_wins():
    class Hill(Term):
        def value(self, x):
            return jnp.sum(x)

    with pytest.raises(IncompatiblePartsError):
        Descent(lambda x: jnp.sum(x), term=Hill(), divergence=BurgEntropy(), step=0.1)

    @closed_form(BurgEntropy, Hill)
    def _(divergence, term, centre, gradient, size):
        return divergence.step(centre, gradient + 1, size, Zero())

    descent = Descent(lambda x: jnp.sum(x), term=Hill(), divergence=BurgEntropy(), step=0.1)
    state, _ = jax.jit(lambda x: descent.update(descent.init(x), jax.random.key(0)))(np.ones(2))
    np.testing.assert_allclose(state.x, 1 / 1.2)

    class Flat(NegativeEntropy):
        pass

    @closed_form(Flat, Zero)
    def _(divergence, term, centre, gradient, size):
        return centre

    np.testing.assert_array_equal(Flat().step(np.ones(2), np.ones(2), 1.0, Zero()), np.ones(2))


@pytest.mark.parametrize(
    ("divergence", "x0", "message"),
    [
        (NegativeEntropy(), np.array([1.0, 0.0]), r"x0 must be positive for divergence=NegativeEntropy.*found 0"),
        (
            BurgEntropy(),
            np.array([1.0, 0.0]),
            "divergence=BurgEntropy, which is infinite at zero; found 0",
        ),
        (DiagonalMetric(weights), np.ones(3), r"weights of DiagonalMetric must broadcast to the shape \(3,\)"),
        (DiagonalMetric({"b": weights}), {"a": np.ones(4)}, "weights of DiagonalMetric must be one array or a tree"),
        (MatrixMetric(METRIC), np.ones(3), "side 4, x0 has 3 entries"),
        (
            KLToCentre(GaussianFamily()),
            Moments(np.zeros(2), np.eye(2)),
            "x0 must be natural parameters of Gaussian",
        ),
    ],
)
def test_a_start_outside_the_geometry_is_refused(divergence, x0, message):
    with pytest.raises(ValueError, match=message):
        Descent(lambda x: jnp.zeros(()), divergence=divergence, step=0.1).init(x0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiagonalMetric([1.0, -1.0]), "weights of DiagonalMetric must be a finite number above 0, found -1"),
        (lambda: MatrixMetric(np.ones((2, 3))), r"must be square, found shape \(2, 3\)"),
        (lambda: MatrixMetric(np.array([[1.0, 2.0], [0.0, 1.0]])), "must be symmetric"),
        (lambda: MatrixMetric(np.diag([1.0, -1.0])), "must be positive definite, found the eigenvalue -1"),
    ],
)
def test_wrong_constructors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_entropy_at_the_boundary():
    divergence = NegativeEntropy()
    value = jax.jit(divergence.value)
    assert value(np.ones(1), np.zeros(1)) == np.inf
    assert value(np.zeros(1), np.ones(1)) == 1
    # An entry driven towards 0 stays positive, so that it can come back.
    _, far = taken(divergence, Zero(), ONE, np.array([3.0]), np.array([1e4]))
    assert 0 < far[0] < 1e-300

"""Lemma 1, Propositions 1 to 3 and Theorem 1 of PG-SVI, in the paper's own norm: ‖G‖² = ‖Δm‖² + ‖ΔV‖² over β².

f is a logistic likelihood of ten examples and three weights, h the divergence to the prior, D = KL[q ‖ q_k], steps are
(82), for which f is linear in λ = (m, V). L and α are those of the points that a run comes to: the proofs need A1 and
A6 there only.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.gaussian import BernoulliLogit, ExpectedLikelihood, Full, GaussianKL, KLToNormal

rng = np.random.default_rng(3)
D, EXAMPLES = 3, 10
DESIGN, LABELS = rng.normal(size=(EXAMPLES, D)), rng.integers(0, 2, size=EXAMPLES).astype(float)
ORACLE = ExpectedLikelihood(BernoulliLogit(), LABELS, DESIGN)
PRIOR = Full(np.zeros(D), np.eye(D), np.eye(D))
TERM, DIVERGENCE = KLToNormal(PRIOR), GaussianKL("moments")
START = Full(rng.normal(size=D), np.diag([0.5, 1.0, 2.0]), np.diag([2.0, 1.0, 0.5]))


def flat(x):
    """λ as one vector, for which (82)'s linear model is ⟨·, λ⟩."""
    return jnp.concatenate([x.mean, x.covariance.ravel()])


def strength(ahead, centre):
    """(λ − λ′)ᵀ∇D(λ ‖ λ′), which A6 compares with α‖λ − λ′‖²."""
    dm, dV = ahead.mean - centre.mean, ahead.covariance - centre.covariance
    return dm @ centre.precision @ dm + jnp.trace(dV @ (centre.precision - ahead.precision)) / 2


@jax.jit
def advance(x, gradient, size):
    """The step, and what the propositions say of it."""
    ahead = DIVERGENCE.step(x, gradient, size, TERM)
    moved = flat(ahead) - flat(x)
    length = moved @ moved
    return ahead, {
        "square": length / size**2,
        "alpha": strength(ahead, x) / length,
        "product": -flat(gradient) @ moved / size,
        "h": TERM.value(ahead) - TERM.value(x),
        "L": jnp.linalg.norm(flat(ORACLE.full(ahead).gradient) - flat(ORACLE.full(x).gradient)) / jnp.sqrt(length),
    }


objective = jax.jit(lambda x: ORACLE.value(x) + TERM.value(x))
full = jax.jit(lambda x: ORACLE.full(x).gradient)


def run(sizes):
    x, seen = START, []
    for size in sizes:
        x, facts = advance(x, full(x), size)
        seen.append({name: float(value) for name, value in facts.items()})
    return x, {name: np.array([facts[name] for facts in seen]) for name in seen[0]}


@pytest.fixture(scope="module")
def best():
    """−ELBO at its optimum."""
    return float(objective(run(np.full(300, 0.2))[0]))


@pytest.mark.parametrize("seed", range(20))
def test_lemma_1(seed):
    """gᵀP ≥ α‖P‖² + (h(λ⁺) − h(λ))/β for any g, here random ones, with the α of the step itself."""
    draw = np.random.default_rng(seed)
    factor = draw.normal(size=(D, D))
    gradient = START._replace(mean=5 * draw.normal(size=D), covariance=factor @ factor.T)
    size = float(10 ** draw.uniform(-2, 1))
    _, facts = advance(START, gradient, size)
    assert facts["alpha"] > 0
    right = facts["alpha"] * facts["square"] + facts["h"] / size
    assert facts["product"] >= right - 1e-9 * abs(facts["product"])


def test_proposition_1(best):
    """min ‖G_k‖² ≤ 2LC₀/(α²t) at β = α/L, for every t."""
    size = 0.1
    _, seen = run(np.full(60, size))
    alpha = seen["alpha"].min()
    lipschitz = alpha / size
    # A larger L than there is is one as well, and makes β = α/L.
    assert lipschitz >= seen["L"].max()
    bound = 2 * lipschitz * (float(objective(START)) - best) / (alpha**2 * np.arange(1, 61))
    assert np.all(np.minimum.accumulate(seen["square"]) <= bound)


@pytest.mark.parametrize("sizes", [np.linspace(0.2, 0.02, 60), np.full(60, 0.15)], ids=["falling", "constant"])
def test_proposition_2(best, sizes):
    """min ‖G_k‖² ≤ C₀/Σ(αβ_k − Lβ_k²/2) for steps below 2α/L."""
    _, seen = run(sizes)
    alpha, lipschitz = seen["alpha"].min(), seen["L"].max()
    assert np.all(sizes < 2 * alpha / lipschitz)
    progress = np.cumsum(alpha * sizes - lipschitz * sizes**2 / 2)
    bound = (float(objective(START)) - best) / progress
    assert np.all(np.minimum.accumulate(seen["square"]) <= bound)


RUNS, STEPS = 40, 50
KEEP = ("square", "alpha", "L", "variance")


ONE = ExpectedLikelihood(BernoulliLogit(), LABELS[:1], DESIGN[:1])


def slopes_of(x, row, label):
    """N∇f_n of one example, whose label needs no check."""
    alone = eqx.tree_at(lambda oracle: (oracle.design, oracle.targets), ONE, (row[None], label[None]))
    return EXAMPLES * flat(alone.full(x).gradient)


@pytest.fixture(scope="module")
def noisy():
    """‖G_k‖² and the rest along runs with batches of M = 2, (runs, steps), by the schedule of sizes."""
    rows = jnp.asarray(DESIGN), jnp.asarray(LABELS)

    def step(x, given):
        key, size = given
        every = jax.vmap(lambda row, label: slopes_of(x, row, label))(*rows)
        drawn = every[jax.random.randint(key, (2,), 0, EXAMPLES)].mean(axis=0)
        gradient = x._replace(mean=drawn[:D], covariance=drawn[D:].reshape(D, D))
        ahead, facts = advance(x, gradient, size)
        facts["variance"] = jnp.mean(jnp.sum((every - every.mean(axis=0, keepdims=True)) ** 2, axis=1))
        return ahead, {name: facts[name] for name in KEEP}

    @jax.jit
    def runs(keys, sizes):
        one = lambda key: jax.lax.scan(step, START, (jax.random.split(key, STEPS), sizes))[1]
        return jax.vmap(one)(keys)

    return lambda sizes: jax.tree.map(np.asarray, runs(jax.random.split(jax.random.key(0), RUNS), jnp.asarray(sizes)))


SCHEDULES = {"proposition 3": np.full(STEPS, 0.05), "theorem 1": np.linspace(0.05, 0.01, STEPS)}


@pytest.mark.parametrize("sizes", SCHEDULES.values(), ids=SCHEDULES)
def test_proposition_3_and_theorem_1(noisy, best, sizes):
    """E‖G_R‖² ≤ (C₀ + cσ²/2·Σβ_k/M)/Σ(α*β_k − Lβ_k²/2), R drawn in proportion to the terms of the last sum."""
    seen = noisy(sizes)
    alpha, lipschitz, variance = seen["alpha"].min(), seen["L"].max(), seen["variance"].max()
    c = 1 / alpha
    weaker = alpha - 1 / (2 * c)
    assert np.all(sizes < 2 * weaker / lipschitz)
    terms = weaker * sizes - lipschitz * sizes**2 / 2
    start = float(objective(START)) - best
    bound = (start + c * variance / 2 * np.sum(sizes) / 2) / np.sum(terms)
    chance = terms / np.sum(terms)
    stops = np.random.default_rng(0).choice(STEPS, size=(RUNS, 200), p=chance)
    drawn = np.take_along_axis(seen["square"], stops, axis=1)
    assert drawn.mean() + 5 * drawn.mean(axis=1).std() / np.sqrt(RUNS) <= bound

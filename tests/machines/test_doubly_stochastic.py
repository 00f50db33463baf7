"""Coordinate rules: which block, how far, and that a checked step is the longest one that is safe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thalweg.kernels import Gaussian
from thalweg.machines import Capped, Checked, New, Points, Rule, Uniform, empty
from thalweg.machines.doubly_stochastic import StepContext

CASES = 2000
BLOCKS, USED, C = 6, 4, 3


def expansion(used=USED, steps=0, drift=None, scale=1.0):
    state = empty(Points(Gaussian(), 1), 1, C, BLOCKS, jnp.float64)
    drift = state.drift if drift is None else drift
    return state._replace(used=jnp.asarray(used), steps=jnp.asarray(steps), drift=drift, scale=jnp.asarray(scale))


def context(mean=(1.0, 0.0, 0.0), noise=0.1, size=0.5, ridge=0.0):
    return StepContext(jnp.asarray(mean), jnp.asarray(noise), jnp.asarray(size), jnp.asarray(ridge))


@pytest.fixture(scope="module")
def cases():
    """Random drifts, gradients, noises, steps and ridges over orders of magnitude, and what the rule makes of them."""
    rng = np.random.default_rng(0)
    size = 10 ** rng.uniform(-3, 1, size=CASES)
    mean = rng.normal(size=(CASES, C)) * 10 ** rng.uniform(-3, 1, size=(CASES, 1))
    noise = 10 ** rng.uniform(-8, 0, size=CASES)
    # Drifts of the length of a step, some along the gradient: elsewhere no old block is ever safe.
    drift = rng.normal(size=(CASES, BLOCKS, C)) * 10 ** rng.uniform(-2, 1, size=(CASES, BLOCKS, 1))
    drift += rng.integers(0, 2, size=(CASES, BLOCKS, 1)) * rng.exponential(3, size=(CASES, 1, 1)) * mean[:, None, :]
    drift *= size[:, None, None]
    ridge = rng.choice([0.0, 1e-3, 0.1, 3.0], size=CASES)
    scale = 10 ** rng.uniform(-5, 0, size=CASES)

    rule = Checked(4.0)

    @jax.jit
    @jax.vmap
    def decide(drift, scale, mean, noise, size, ridge):
        state = expansion(drift=drift / scale, scale=scale)
        seen = StepContext(mean, noise, size, ridge)
        return rule.safe_sizes(state, seen), rule.choose(state, seen, jax.random.key(0))

    sizes, choice = decide(drift, scale, mean, noise, size, ridge)
    return drift, mean, noise, size, ridge, np.asarray(sizes), jax.tree.map(np.asarray, choice)


def excess(s, drift, mean, noise, size):
    """(9), corrected: 2‖β − sḡ‖² + 2s²v ≤ ‖β‖² + γ²‖ḡ‖², as left less right; and the scale of its terms."""
    left = 2 * ((drift - s[..., None] * mean) ** 2).sum(-1) + 2 * s**2 * noise
    right = (drift**2).sum(-1) + size**2 * (mean**2).sum(-1)
    return left - right, left + right


def test_a_checked_step_is_the_longest_that_is_safe(cases):
    drift, mean, noise, size, _, sizes, _ = cases
    drift, mean, noise, size = drift[:, :USED], mean[:, None, :], noise[:, None], size[:, None]
    found = sizes[:, :USED]
    assert (sizes[:, USED:] == 0).all()
    over, terms = excess(found, drift, mean, noise, size)
    safe = found > 0
    assert 0.2 < safe.mean() < 0.9
    assert (over[safe] < 1e-9 * terms[safe]).all()
    # Where there is a safe step, none is longer; where there is none, none of any length is safe.
    for stretch in (1 + 1e-4, 1.01, 1.5, 10.0):
        longer, _ = excess(stretch * found, drift, mean, noise, size)
        assert (longer[safe] > 0).all()
    for length in 10.0 ** np.linspace(-6, 4, 101):
        any_length, _ = excess(np.full_like(found, length), drift, mean, noise, size)
        assert (any_length[found <= 0] > 0).all()


def test_the_checked_rule_takes_the_longest_safe_step_or_a_new_block(cases):
    _, _, _, size, ridge, sizes, choice = cases
    best = sizes.max(axis=1)
    old = best > size
    assert 0.1 < old.mean() < 0.9
    np.testing.assert_array_equal(choice.new, ~old)
    np.testing.assert_array_equal(choice.block, np.where(old, sizes.argmax(axis=1), USED))
    np.testing.assert_array_equal(choice.size[~old], size[~old])
    with np.errstate(divide="ignore"):
        expected = np.minimum(best, np.minimum(4.0 * size, 1 / ridge))
    np.testing.assert_allclose(choice.size[old], expected[old], rtol=1e-12)
    assert (best[old] > 4 * size[old]).any()
    assert (1 / ridge[old & (ridge > 0)] < best[old & (ridge > 0)]).any()


def test_no_gradient_and_no_noise_is_no_safe_step():
    choice = jax.jit(Checked().choose)(expansion(), context(mean=(0.0, 0.0, 0.0), noise=0.0), jax.random.key(0))
    assert bool(choice.new)
    assert float(choice.size) == 0.5


def test_the_uniform_rule_has_periods_that_begin_with_a_new_block():
    rules = [(1, 1), (2, 3), (3, 0)]
    choose = jax.jit(lambda *given: [Uniform(*rule).choose(*given).new for rule in rules])
    found = np.array([choose(expansion(steps=i), context(), jax.random.key(i)) for i in range(10)]).T
    for (new, old), taken in zip(rules, found.tolist(), strict=True):
        assert taken == (([True] * new + [False] * old) * 10)[:10]


@pytest.mark.parametrize("rule", [Uniform(1, 1), Capped(USED)])
def test_old_blocks_are_drawn_uniformly(rule):
    keys = jax.random.split(jax.random.key(0), 4000)
    choice = jax.jit(jax.vmap(lambda key: rule.choose(expansion(steps=1), context(), key)))(keys)
    assert not np.any(choice.new)
    counts = np.bincount(choice.block, minlength=USED)
    assert len(counts) == USED
    assert (np.abs(counts - 1000) < 5 * np.sqrt(1000 * 0.75)).all()


def test_new_blocks_end_at_the_cap():
    choose = jax.jit(lambda *given: [rule.choose(*given) for rule in (New(), Capped(3))])
    for choice in choose(expansion(2), context(), jax.random.key(0)):
        assert choice[::2] == (2, True)
    new, capped = choose(expansion(3), context(), jax.random.key(0))
    assert new.new
    assert not capped.new
    assert (New().limit, Uniform().limit, Checked().limit, Capped(3).limit) == (None, None, None, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Uniform(0, 1), ValueError, "new of Uniform must be a whole number of at least 1, found 0"),
        (lambda: Uniform(1, -1), ValueError, "old of Uniform must be a whole number of at least 0, found -1"),
        (lambda: Capped(2.0), TypeError, "blocks of Capped must be a whole number of at least 1, found 2.0"),
        (lambda: Checked(0.5), ValueError, "stretch of Checked must be a number of at least 1, found 0.5"),
        (lambda: Rule().choose(None, None, None), NotImplementedError, r"Rule must define choose\(expansion"),
    ],
)
def test_errors_name_the_wrong_parameter(make, error, message):
    with pytest.raises(error, match=message):
        make()

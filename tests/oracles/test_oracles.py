"""What each oracle does beside the common law: epochs, work, baselines, snapshots, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array

from thalweg.descent import Descent
from thalweg.oracles import (
    SVRG,
    Exact,
    FiniteDifferences,
    LooplessSVRG,
    MiniBatch,
    Reparameterised,
    ScoreFunction,
)
from thalweg.oracles.base import Oracle, as_oracle

N = 10
data = (jnp.asarray(np.arange(N, dtype=float)), jnp.asarray(np.ones(N)))


def mini(batch_size=3, **options):
    return MiniBatch(lambda x, batch: batch[0] * x[0] + batch[1] * x[1] ** 2, data, batch_size, **options)


def test_an_epoch_sees_no_example_twice_orders_differ_and_none_is_always_left_out():
    # The loss of an example is its own entry of x, so that the gradient tells which were drawn.
    oracle = MiniBatch(lambda x, batch: x[batch], np.arange(N), 3, replacement=False)
    x = np.zeros(N)

    def draw(state, key):
        out, state = oracle.estimate(x, state, key)
        return state, jax.lax.top_k(out.gradient, 3)

    keys = jax.random.split(jax.random.key(0), 60)
    shares, drawn = map(np.asarray, jax.jit(lambda keys: jax.lax.scan(draw, oracle.init(x), keys))(keys)[1])
    np.testing.assert_allclose(shares, 1 / 3)
    epochs = drawn.reshape(20, 9)
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 15
    assert set(drawn.ravel()) == set(range(N))


def test_work_is_counted():
    x = np.ones(2)
    key = jax.random.key(0)
    oracle = mini()
    work = jax.jit(lambda x: (oracle.estimate(x, oracle.init(x), key)[0].work, oracle.full(x).work))
    assert tuple(map(float, work(x))) == (3, N)
    svrg = SVRG(oracle, period=4)

    def twice(x):
        first, state = svrg.estimate(x, svrg.init(x), key)
        return first.work, svrg.estimate(x, state, key)[0].work

    assert tuple(map(float, jax.jit(twice)(x))) == (N + 6, 6)
    monte_carlo = Reparameterised(lambda x, key: jnp.sum(x), samples=7)
    others = monte_carlo, FiniteDifferences(jnp.sum), Exact(jnp.sum, work=50.0)
    work = jax.jit(lambda x: [other.estimate(x, (), key)[0].work for other in others])
    assert list(map(float, work(x))) == [7, 4, 50]


def test_svrg_has_no_noise_at_its_snapshot_and_less_near_it():
    oracle = mini(weights=np.linspace(0.1, 1, N))
    svrg = SVRG(oracle, period=5)
    snapshot = np.array([0.5, -1.0])
    near = snapshot + 0.01
    keys = jax.random.split(jax.random.key(0), 500)

    @jax.jit
    def gradients(points):
        state = svrg.init(snapshot)
        reduced = lambda x: jax.vmap(lambda key: svrg.estimate(x, state, key)[0].gradient)(keys)
        return *jax.vmap(reduced)(points), jax.vmap(lambda key: oracle.estimate(near, (), key)[0].gradient)(keys)

    there, nearby, plain = (np.max(np.std(drawn, axis=0)) for drawn in gradients(np.stack([snapshot, near])))
    np.testing.assert_allclose(there, 0, atol=1e-12)
    assert 0 < nearby < 0.05 * plain


def test_svrg_last_restart_leaves_the_iterate_alone():
    svrg = SVRG(mini(), period=2, restart="last")
    x = np.array([1.0, 2.0])

    @jax.jit
    def renewed(start, x):
        _, state = svrg.estimate(start, svrg.init(start), jax.random.key(0))
        return svrg.renew(x, state)

    kept, state = renewed(np.zeros(2), x)
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(state.anchor.x, x)


def test_loopless_snapshots_move_with_the_stated_probability():
    oracle = LooplessSVRG(mini(), probability=0.25)
    x, keys = np.ones(2), jax.random.split(jax.random.key(0), 4000)

    @jax.jit
    def moves(keys):
        state = oracle.init(np.zeros(2))
        return jax.vmap(lambda key: oracle.estimate(x, state, key)[1].anchor.x[0] == 1)(keys)

    moved = moves(keys)
    assert np.mean(moved) == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 4000))


def test_the_baseline_lowers_the_variance():
    sample = lambda x, key: x + jax.random.normal(key, x.shape)
    log_prob = lambda x, z: -0.5 * jnp.sum((z - x) ** 2)
    integrand = lambda x, z: 100 + jnp.sum(z)
    oracles = [ScoreFunction(integrand, sample, log_prob, samples=8, baseline=baseline) for baseline in (True, False)]
    gradients = lambda key: [oracle.estimate(np.zeros(2), (), key)[0].gradient for oracle in oracles]
    drawn = jax.jit(jax.vmap(gradients))(jax.random.split(jax.random.key(0), 2000))
    assert np.std(drawn[0]) < np.std(drawn[1]) / 20


def test_finite_differences_match_autodiff_on_a_tree():
    f = lambda x: jnp.sum(jnp.sin(x["a"])) * x["b"] ** 2
    x = {"a": np.array([0.3, 1.2]), "b": np.array(0.7)}
    out, _ = jax.jit(lambda x: FiniteDifferences(f).estimate(x, (), None))(x)
    exact = {"a": np.cos([0.3, 1.2]) * 0.7**2, "b": 1.4 * np.sum(np.sin([0.3, 1.2]))}
    for name in x:
        np.testing.assert_allclose(out.gradient[name], exact[name], rtol=1e-8)


def test_data_travel_as_arguments_and_are_not_baked_in():
    oracle = mini()
    leaves = jax.tree.leaves(oracle)
    assert any(leaf is data[0] for leaf in leaves)
    traced = jax.make_jaxpr(lambda o, x: o.estimate(x, (), jax.random.key(0))[0].gradient)(oracle, np.ones(2))
    assert all(np.size(constant) < N for constant in traced.consts)


def test_a_plain_function_becomes_an_exact_oracle():
    assert isinstance(as_oracle(lambda x: jnp.sum(x)), Exact)
    oracle = mini()
    assert as_oracle(oracle) is oracle


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mini(0), "batch_size must be a whole number from 1 to 10, found 0"),
        (lambda: mini(11), "batch_size must be a whole number from 1 to 10, found 11"),
        (lambda: mini(2.5), "batch_size must be a whole number from 1 to 10, found 2.5"),
        (lambda: mini(weights=np.ones(3)), r"weights must have shape \(10,\), one per example, found \(3,\)"),
        (lambda: mini(weights=-np.ones(N)), "weights must be finite, non-negative and not all 0"),
        (lambda: mini(weights=np.full(N, np.nan)), "weights must be finite, non-negative and not all 0"),
        (lambda: MiniBatch(lambda x, b: x, (np.ones(3), np.ones(4)), 1), "arrays of one common length"),
        (lambda: MiniBatch(lambda x, b: x, np.ones((0, 2)), 1), "at least one example"),
        (lambda: MiniBatch(lambda x, b: x, (), 1), "arrays of one common length"),
        (lambda: mini(weights=np.r_[np.inf, np.ones(N - 1)]), "weights must be finite"),
        (
            lambda: MiniBatch(lambda x, b: jnp.mean(b), np.ones(N), 2).value(np.ones(2)),
            r"losses must return one loss per example, shape \(10,\), found \(\)",
        ),
        (lambda: SVRG(mini(), 0), "period of SVRG must be a whole number of at least 1, found 0"),
        (lambda: SVRG(mini(), 5, restart="first"), "restart of SVRG must be one of 'mean', 'last', found 'first'"),
        (lambda: SVRG(Reparameterised(lambda x, k: x), 5), r"oracle=Reparameterised has no full\(x\)"),
        (lambda: SVRG(lambda x: x, 5), "oracle must be an Oracle"),
        (lambda: LooplessSVRG(mini(), 0.0), "probability of LooplessSVRG must be a finite number above 0 of at most 1"),
        (lambda: LooplessSVRG(mini(), 1.5), "found 1.5"),
        (lambda: Reparameterised(lambda x, k: x, samples=0), "samples must be a whole number of at least 1, found 0"),
        (lambda: ScoreFunction(max, max, max, samples=1), "samples must be a whole number of at least 2, found 1"),
        (
            lambda: FiniteDifferences(max, spacing=0.0),
            "spacing of FiniteDifferences must be a finite number above 0",
        ),
        (lambda: as_oracle(3), "oracle must be an Oracle or a function x -> scalar, found int"),
        (lambda: as_oracle(MiniBatch), "oracle must be an instance, found the class MiniBatch"),
    ],
)
def test_wrong_input(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_an_oracle_must_define_estimate():
    with pytest.raises(NotImplementedError, match=r"Oracle must define estimate\(x, state, key\)"):
        Descent(Oracle(), step=0.1).update(Descent(Oracle(), step=0.1).init(np.ones(2)), jax.random.key(0))


def test_exact_refuses_matrices_that_jax_cannot_multiply():
    with pytest.raises(TypeError, match=r"args of Exact must be arrays .*, found SciPy's csr_array: pass .*BCOO"):
        Exact(lambda x, A: jnp.sum(A @ x), csr_array(np.eye(2)))

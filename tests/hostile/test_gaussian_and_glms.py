"""Hostile inputs to the GLMs and to the parts of ``gaussian``: a clear error, or a right answer. One line a case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from thalweg import BernoulliGLM, CategoricalGLM, GaussianGLM, NegativeBinomialGLM, PoissonGLM
from thalweg import gaussian as g

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
Z = X @ [1.0, -0.5]
LABELS, NUMBERS, COUNTS = (rng.logistic(size=40) < Z).astype(int), Z + rng.normal(size=40), rng.poisson(np.exp(Z))
CLASSES = np.argmax(np.column_stack([Z, -Z, 0 * Z]) + rng.gumbel(size=(40, 3)), axis=1)
BOTH = (TypeError, ValueError)


def ber(rows=X, y=LABELS, weights=None, offset=None, **options):
    return BernoulliGLM(**options).fit(rows, y, weights, offset)


def lin(rows=X, y=NUMBERS, weights=None, offset=None, **options):
    return GaussianGLM(**options).fit(rows, y, weights, offset)


def poi(rows=X, y=COUNTS, weights=None, **options):
    known = {name: options.pop(name) for name in ("offset", "exposure") if name in options}
    return PoissonGLM(**options).fit(rows, y, weights, **known)


def neg(rows=X, y=COUNTS, **options):
    return NegativeBinomialGLM(**{"dispersion": 0.5, **options}).fit(rows, y)


def cat(rows=X, y=CLASSES, weights=None, **options):
    return CategoricalGLM(**options).fit(rows, y, weights)


def once(make):
    kept = []
    return lambda: (kept or kept.append(make()) or kept)[0]


# The models of plain arrays, each fitted when first asked for.
BER, LIN, POI, NEG, CAT = map(once, (ber, lin, poi, neg, cat))


def same(plain, digits=1e-6):
    """The coefficients are those of the model of plain arrays."""
    return lambda model: np.allclose(model.coef_, plain().coef_, rtol=digits, atol=digits)


def near(value, digits=1e-6):
    return lambda found: np.allclose(found, value, rtol=digits, atol=digits)


def sound(model):
    """Everything it says is a finite number, and deviations are not negative."""
    said = [model.coef_, model.coef_sd_, model.intercept_, model.intercept_sd_, model.elbo_, model.interval()]
    return all(np.all(np.isfinite(part)) for part in said) and np.all(model.coef_sd_ >= 0)


def like(first, second, digits=1e-6):
    return lambda _: np.allclose(first(), second(), rtol=digits, atol=digits)


class Frame:
    """A data frame, as far as scikit-learn looks at it."""

    columns = ("dose", "age")
    shape = X.shape

    def __array__(self, dtype=None, copy=None):
        return X.astype(dtype or float)

    def __len__(self):
        return len(X)


def refit_with_another_width():
    model = BernoulliGLM(2.5).fit(X, LABELS)
    return model.fit(X[:, :1], LABELS)


def stream(*batches, model=None, **options):
    model = model or PoissonGLM(**options)
    for batch in batches:
        model.partial_fit(*batch)
    return model


HUGE, TINY = 1e74, 1e-74
OBJECTS, WORDS = X.astype(object), X.astype(str)
MASKED = np.ma.masked_array(X, mask=np.zeros(X.shape, bool))
HIDDEN = np.ma.masked_array(X, mask=X > 0.5)
BIG_ENDIAN, STRIDED = X.astype(">f8"), np.asfortranarray(np.repeat(X, 2, axis=0))[::2]
ORACLE = lambda **options: g.ExpectedLikelihood(g.BernoulliLogit(), jnp.array([0.0, 1.0]), **options)
Q, PRIOR = jnp.zeros(2), g.Full(np.zeros(2), np.eye(2), np.eye(2))

CASES = [
    # Features.
    ("NaN in X", lambda: ber(np.where(X > 2, np.nan, X)), (ValueError, "X contains NaN")),
    ("infinity in X", lambda: lin(np.where(X > 2, np.inf, X)), (ValueError, "X contains infinity")),
    ("no rows", lambda: poi(X[:0], COUNTS[:0]), (ValueError, r"0 sample\(s\)")),
    ("no columns", lambda: ber(X[:, :0]), (ValueError, r"0 feature\(s\)")),
    ("one axis", lambda: lin(X[:, 0]), (ValueError, "Expected 2D array, got 1D")),
    ("three axes", lambda: lin(X[:, :, None]), (ValueError, "Found array with dim 3, while dim <= 2")),
    ("a number for X", lambda: ber(3.0), (ValueError, "Expected 2D array, got scalar")),
    ("None for X", lambda: ber(None), (ValueError, "Expected 2D array|NoneType|None")),
    ("words", lambda: ber(np.full((40, 2), "red")), (ValueError, "could not convert string to float")),
    ("strings of numbers", lambda: ber(WORDS), same(BER)),
    ("objects of numbers", lambda: ber(OBJECTS), same(BER)),
    ("a None among objects", lambda: ber(np.where(X > 2, None, OBJECTS)), (ValueError, "X contains NaN")),
    ("complex X", lambda: ber(X + 0j), (ValueError, "Complex data not supported")),
    ("lists", lambda: ber(X.tolist(), LABELS.tolist()), same(BER)),
    ("ragged lists", lambda: ber([[1.0, 2.0], [3.0]], [0, 1]), (ValueError, "inhomogeneous|sequence")),
    ("a generator", lambda: ber(row for row in X), (BOTH, "generator|Expected 2D|iterable")),
    ("a data frame", lambda: ber(Frame()), same(BER)),
    ("JAX arrays", lambda: ber(jnp.asarray(X, jnp.float32), jnp.asarray(LABELS)), same(BER, 1e-4)),
    ("float16", lambda: ber(X.astype(np.float16)), same(BER, 1e-2)),
    ("big-endian", lambda: ber(BIG_ENDIAN), same(BER)),
    ("strided", lambda: ber(STRIDED), same(BER)),
    ("masked, nothing hidden", lambda: ber(MASKED), same(BER)),
    ("masked, something hidden", lambda: ber(HIDDEN), (ValueError, "X must hide nothing, found a masked array")),
    ("masked targets", lambda: lin(X, HIDDEN[:, 0]), (ValueError, "y must hide nothing, found a masked array")),
    ("masked rows to predict", lambda: BER().predict(HIDDEN), (ValueError, "X must hide nothing")),
    ("not fitted, several classes", lambda: CategoricalGLM().predict(X), (NotFittedError, "not fitted")),
    ("booleans for X", lambda: ber(X > 0), sound),
    ("integers", lambda: poi(np.round(X * 3).astype(np.int8)), sound),
    ("sparse", lambda: ber(scipy.sparse.csr_array(X)), same(BER)),
    ("sparse of integers", lambda: ber(scipy.sparse.coo_matrix(np.round(X).astype(int))), sound),
    (
        "sparse with NaN",
        lambda: ber(scipy.sparse.csr_array(np.where(X > 2, np.nan, X))),
        (ValueError, "X contains NaN"),
    ),
    (
        "sparse and huge",
        lambda: ber(scipy.sparse.csr_array((40, 10**9)), LABELS),
        (ValueError, "X is sparse, and would take 298.0 GiB"),
    ),
    (
        "beyond squares",
        lambda: ber(X * 1e200),
        (
            ValueError,
            r"X must hold numbers of at most 1e\+75, in each column one of at least 1e-75 or 0 alone, found",
        ),
    ),
    ("huge features", lambda: HUGE * ber(X * HUGE).coef_, near(0, 10)),
    ("huge features are the same", lambda: None, like(lambda: ber(X * HUGE).coef_ * HUGE, lambda: BER().coef_, 1e-4)),
    ("tiny features are the same", lambda: None, like(lambda: poi(X * TINY).coef_ * TINY, lambda: POI().coef_, 1e-4)),
    ("features far away", lambda: lin(X + 1e9), same(LIN, 1e-4)),
    ("a constant column", lambda: ber(np.column_stack([X, np.full(40, 7.0)])).coef_[2], near(0)),
    ("a column of zeros", lambda: poi(np.column_stack([X, np.zeros(40)])).coef_[2], near(0)),
    (
        "all columns constant",
        lambda: ber(np.ones((40, 2))).predict_proba(np.ones((1, 2)))[0, 1],
        near(LABELS.mean(), 0.05),
    ),
    ("a column twice", lambda: np.diff(lin(X[:, [0, 0, 1]]).coef_[:2]), near(0)),
    ("a row twice", lambda: ber(np.vstack([X, X[:1]]), np.append(LABELS, LABELS[0])), sound),
    ("all rows equal", lambda: lin(np.ones((40, 2)), NUMBERS).predict(np.ones((1, 2))), near(NUMBERS.mean(), 1e-3)),
    # Targets.
    ("one row", lambda: lin(X[:1], [3.0]), (UserWarning, "tell nothing of the noise")),
    ("one row of counts", lambda: poi(X[:1], [3]), sound),
    ("one row of a class", lambda: ber(X[:1], [1]), (ValueError, "needs two classes, found one class")),
    ("two rows", lambda: ber(X[:2], [0, 1]), sound),
    ("fewer targets", lambda: ber(X, LABELS[:-1]), (ValueError, r"inconsistent numbers of samples: \[40, 39\]")),
    (
        "a column of targets",
        lambda: lin(X, np.column_stack([NUMBERS, NUMBERS])),
        (ValueError, "y should be a 1d array"),
    ),
    ("NaN in y", lambda: lin(X, NUMBERS * np.nan), (ValueError, "y contains NaN")),
    ("infinity in y", lambda: poi(X, np.full(40, np.inf)), (ValueError, "y contains infinity")),
    ("complex y", lambda: lin(X, NUMBERS + 0j), (ValueError, "(?i)complex|y must hold numbers")),
    ("words for numbers", lambda: lin(X, ["a"] * 40), (ValueError, "y must hold numbers, found|convert string")),
    (
        "targets too small",
        lambda: lin(X, 1e-80 * X[:, 0]),
        (ValueError, "in each column one of at least 1e-75 or 0 alone"),
    ),
    (
        "weights too large",
        lambda: BernoulliGLM().fit(X, LABELS, np.full(len(X), 1e30)),
        (ValueError, "must add up to 1e\\+15 at"),
    ),
    ("numbers as words", lambda: lin(X, NUMBERS.astype(str)), (ValueError, "y must hold numbers, found")),
    ("None for y", lambda: lin(X, None), (ValueError, "requires y to be passed")),
    ("negative counts", lambda: poi(X, COUNTS - 5), (ValueError, "y must hold counts, numbers of at least 0, found -")),
    ("negative counts, dispersed", lambda: neg(X, -COUNTS - 1.0), (ValueError, "y must hold counts")),
    ("fractions of counts", lambda: poi(X, COUNTS + 0.5), sound),
    ("truths as counts", lambda: poi(X, LABELS.astype(bool)), same(lambda: poi(X, LABELS))),
    ("unsigned counts", lambda: poi(X, COUNTS.astype(np.uint8)), same(POI)),
    ("huge counts", lambda: poi(X, COUNTS + 10.0**12).predict(X), near(10.0**12, 1e-3)),
    ("no counts", lambda: poi(X, 0 * COUNTS).predict(X).mean() < 0.1, near(True)),
    ("numbers for classes", lambda: ber(X, NUMBERS), (ValueError, "Unknown label type: continuous")),
    (
        "three classes of two",
        lambda: ber(X, CLASSES),
        (ValueError, "Only binary.* CategoricalGLM is for more than two"),
    ),
    ("one class of several", lambda: cat(X, 0 * CLASSES), (ValueError, "needs two classes or more, found one class")),
    ("truths as classes", lambda: ber(X, LABELS.astype(bool)).classes_.tolist() == [False, True], near(True)),
    ("words as classes", lambda: ber(X, np.array(["no", "yes"])[LABELS]), same(BER)),
    ("classes at −1 and 1", lambda: ber(X, 2 * LABELS - 1), same(BER)),
    ("constant targets", lambda: lin(X, np.full(40, 5.0)).predict(X), near(5.0)),
    ("targets without noise", lambda: lin(X, X @ [3.0, 1.0]).coef_, near([3.0, 1.0], 1e-3)),
    (
        "huge targets",
        lambda: lin(X, NUMBERS * HUGE).coef_ / HUGE,
        lambda found: same(LIN)(type("", (), {"coef_": found})),
    ),
    (
        "tiny targets",
        lambda: lin(X, NUMBERS * 1e-40).coef_ * 1e40,
        lambda found: same(LIN)(type("", (), {"coef_": found})),
    ),
    ("targets far away", lambda: lin(X, NUMBERS + 1e8), same(LIN, 1e-4)),
    (
        "targets beyond squares",
        lambda: lin(X, NUMBERS * 1e200),
        (
            ValueError,
            r"y must hold numbers of at most 1e\+75, in each column one of at least 1e-75 or 0 alone, found",
        ),
    ),
    # Weights and offsets.
    ("negative weights", lambda: ber(X, LABELS, -np.ones(40)), (ValueError, "sample_weight must be non-negative")),
    ("weights of nothing", lambda: lin(X, NUMBERS, np.zeros(40)), (ValueError, "(?i)weight.*(zero|all 0)")),
    ("NaN weights", lambda: lin(X, NUMBERS, np.full(40, np.nan)), (ValueError, "sample_weight.*NaN")),
    ("fewer weights", lambda: lin(X, NUMBERS, np.ones(39)), (ValueError, r"sample_weight.*\(39,\)")),
    ("one weight for all", lambda: lin(X, NUMBERS, 1.0), same(LIN)),
    ("weights of one class only", lambda: ber(X, LABELS, LABELS), (ValueError, "found one class")),
    (
        "tiny weights",
        lambda: poi(X[:, :1], COUNTS, np.full(40, 1e-8)),
        (UserWarning, "adds up to 4e-07: hardly anything is"),
    ),
    ("NaN offset", lambda: ber(X, LABELS, None, np.nan), (ValueError, "offset must hold finite numbers, found nan")),
    ("a word for offset", lambda: lin(X, NUMBERS, None, "auto"), (TypeError, "offset must hold numbers, found 'auto'")),
    ("a truth for offset", lambda: lin(X, NUMBERS, None, True), (TypeError, "offset must hold numbers, found True")),
    (
        "fewer offsets",
        lambda: lin(X, NUMBERS, None, Z[:3]),
        (ValueError, r"offset must .* \(40,\).* found shape \(3,\)"),
    ),
    ("a column of offsets", lambda: lin(X, NUMBERS, None, Z[:, None]), (ValueError, r"offset must .* shape \(40, 1\)")),
    ("an offset too far", lambda: poi(offset=2000.0).predict(X[:1], offset=2000.0), near(POI().predict(X[:1]), 1e-3)),
    ("no exposure", lambda: poi(exposure=0), (ValueError, "exposure must hold finite numbers above 0, found 0")),
    (
        "negative exposure",
        lambda: poi(exposure=-1),
        (ValueError, "exposure must hold finite numbers above 0, found -1"),
    ),
    ("equal exposures", lambda: poi(exposure=[7] * 40), same(POI, 1e-4)),
    ("tiny exposures", lambda: poi(exposure=1e-30), same(POI, 1e-4)),
    # Parameters.
    ("a negative scale", lambda: ber(prior_scale=-1), (ValueError, "'prior_scale' parameter of BernoulliGLM must be")),
    ("NaN for a scale", lambda: ber(prior_scale=np.nan), (ValueError, "prior_scale")),
    ("an unknown word", lambda: poi(prior_scale="wide"), (ValueError, "'prior_scale' parameter of PoissonGLM must be")),
    ("three scales of two", lambda: lin(prior_scale=[1, 2, 3]), (ValueError, r"prior_scale must .* shape \(2,\)")),
    ("a matrix of scales", lambda: lin(prior_scale=np.ones((2, 2))), (ValueError, r"prior_scale .* shape \(2, 2\)")),
    ("words for scales", lambda: lin(prior_scale=["a", "b"]), (ValueError, "prior_scale|could not convert")),
    ("a tiny scale", lambda: neg(prior_scale=1e-30).coef_, near(0)),
    ("a truth for an intercept", lambda: ber(fit_intercept="no"), (ValueError, "'fit_intercept' parameter")),
    ("half a step", lambda: ber(max_iter=0.5), (ValueError, "'max_iter' parameter")),
    ("no dispersion", lambda: neg(dispersion=0), (ValueError, "'dispersion' parameter")),
    ("negative noise", lambda: lin(noise_variance=-1.0), (ValueError, "'noise_variance' parameter")),
    (
        "weights of an unknown class",
        lambda: ber(class_weight={3: 1.0}),
        (ValueError, "class_weight must be for .* found 3"),
    ),
    (
        "no weight of a class",
        lambda: ber(class_weight={1: 0}),
        (ValueError, "class_weight must hold finite numbers above 0"),
    ),
    ("a word for class weights", lambda: ber(class_weight="fair"), (ValueError, "'class_weight' parameter")),
    ("learned, of several classes", lambda: cat(prior_scale="learn"), (ValueError, "'prior_scale' parameter of Categ")),
    # Predictions.
    ("not fitted", lambda: BernoulliGLM().predict(X), (NotFittedError, "not fitted")),
    ("no samples yet", lambda: CategoricalGLM().sample(3), (NotFittedError, "not fitted")),
    ("no interval yet", lambda: PoissonGLM().predict_interval(X), (NotFittedError, "not fitted")),
    (
        "another width",
        lambda: BER().predict(X[:, :1]),
        (ValueError, "X has 1 features, but BernoulliGLM is expecting 2"),
    ),
    ("NaN to predict", lambda: POI().predict(X * np.nan), (ValueError, "X contains NaN")),
    ("far away", lambda: BER().predict_proba([[1e74, 0.0]])[0, 1], near(1.0, 0.1)),
    (
        "counts far away",
        lambda: POI().predict([[1e5, 0.0]]),
        (RuntimeWarning, "1 rows whose rates are known to a factor of a hundred at best"),
    ),
    ("offsets of other rows", lambda: BER().predict(X[:3], offset=Z), (ValueError, r"offset must .* shape \(3,\)")),
    ("a level in per cent", lambda: LIN().interval(95), (ValueError, "level must be .* below 1, found 95")),
    ("a level of 1", lambda: POI().predict_interval(X, 1.0), (ValueError, "level must be .* below 1, found 1.0")),
    ("a word for a level", lambda: LIN().predict_interval(X, "95%"), (TypeError, "level must be .* found '95%'")),
    ("no draws", lambda: BER().sample(0), (ValueError, "n must be a whole number of at least 1, found 0")),
    ("half a draw", lambda: LIN().sample(2.5), (TypeError, "n must be a whole number of at least 1, found 2.5")),
    ("a word for a seed", lambda: LIN().sample(random_state="a"), (TypeError, "random_state must be .* found 'a'")),
    ("an old generator", lambda: LIN().sample(2, random_state=np.random.RandomState(0)).shape == (2, 3), near(True)),
    ("draws of unseen width", lambda: CAT().sample(2, X[:, :1]), (ValueError, "X has 1 features")),
    ("sparse rows to draw of", lambda: CAT().sample(2, scipy.sparse.csr_array(X)).shape == (2, 40), near(True)),
    ("several classes far away", lambda: CAT().predict_proba([[1e50, 0.0]]).sum(), near(1.0)),
    ("refit with another width", refit_with_another_width, lambda model: model.coef_.shape == (1,)),
    # Streams.
    ("a batch of another width", lambda: stream((X, COUNTS), (X[:, :1], COUNTS)), (ValueError, "X has 1 features")),
    ("batches of one row", lambda: stream(*((X[i : i + 1], COUNTS[i : i + 1]) for i in range(3))), sound),
    ("a first row of zeros", lambda: stream((0 * X[:1], COUNTS[:1]), (X, COUNTS)), sound),
    (
        "an unseen class",
        lambda: stream((X, LABELS), (X, LABELS + 1), model=BernoulliGLM()),
        (ValueError, r"y must hold the classes \[0 1\] only, found \[2\]"),
    ),
    # Likelihoods and oracles.
    ("labels at −1", lambda: g.BernoulliLogit().check([-1, 1]), (ValueError, "y must be labels 0 or 1 .* found -1")),
    (
        "halves of counts",
        lambda: g.Poisson().check([0.5]),
        (ValueError, "y must be whole numbers of at least 0, found 0.5"),
    ),
    (
        "words for targets",
        lambda: g.GaussianNoise(1.0).check(["a"]),
        (ValueError, "y must be finite numbers, found an array"),
    ),
    ("NaN variance", lambda: g.GaussianNoise(np.nan), (ValueError, "variance of GaussianNoise must be .* found nan")),
    ("no degrees", lambda: g.StudentT(0.0, 1.0), (ValueError, "degrees of StudentT must be .* above 0, found 0.0")),
    ("a word for dispersion", lambda: g.NegativeBinomial("x"), (TypeError, "dispersion of NegativeBinomial must be")),
    (
        "a class for a likelihood",
        lambda: g.ExpectedLikelihood(g.Poisson, [1.0]),
        (TypeError, "found the class Poisson"),
    ),
    (
        "a word for a likelihood",
        lambda: g.ExpectedLikelihood("logit", [1.0]),
        (TypeError, "likelihood must be a Likelihood"),
    ),
    ("no targets", lambda: g.ExpectedLikelihood(g.Poisson(), []), (ValueError, "targets must be a non-empty vector")),
    ("a short offset", lambda: ORACLE(offset=[1.0]), (ValueError, "offset must be a vector of 2, one for each target")),
    ("a NaN offset", lambda: ORACLE(offset=[1.0, np.nan]), (ValueError, "offset must hold finite numbers, found nan")),
    (
        "negative weights of an oracle",
        lambda: ORACLE(weights=[1.0, -1.0]),
        (ValueError, "weights must hold .* found -1"),
    ),
    ("a batch too large", lambda: ORACLE(batch_size=3), (ValueError, "batch_size must be a whole number from 1 to 2")),
    (
        "a design of other rows",
        lambda: ORACLE(design=np.ones((3, 2))),
        (ValueError, "design must be a matrix of 2 rows"),
    ),
    ("a posterior without design", lambda: ORACLE().value(PRIOR), (ValueError, "design must be given for a Full")),
    ("no samples", lambda: g.MonteCarlo(0), (ValueError, "must be a whole number of at least 1, found 0")),
    ("a word for samples", lambda: g.ScoreSamples("many"), (TypeError, "must be a whole number .* found 'many'")),
    (
        "a seed for a key",
        lambda: g.MonteCarlo(3)(g.Poisson(), 1.0, 0.0, 1.0, 0),
        (TypeError, "key of MonteCarlo must be one JAX random key"),
    ),
    (
        "an offset of an oracle",
        lambda: jax.jit(lambda q: ORACLE(design=np.eye(2), offset=[9.0, -9.0]).value(q))(PRIOR),
        near(18.0, 0.02),
    ),
]


@pytest.mark.parametrize(("call", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_clear_error_or_a_right_answer(call, expected):
    if callable(expected):
        assert expected(call())
    else:
        with pytest.raises(expected[0], match=expected[1]):
            call()


def test_the_table_is_as_long_as_it_says():
    assert len(CASES) >= 80
    assert len({case[0] for case in CASES}) == len(CASES)
    assert jax.devices()

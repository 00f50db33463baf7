"""Hostile inputs to kernels, GPClassifier and processes: a clear error, or a right answer. One line a case."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from thalweg import GPClassifier
from thalweg.gaussian import BernoulliLogit, Poisson
from thalweg.kernels import (
    Bias,
    Cauchy,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Matern12,
    Periodic,
    RandomFeatures,
    Sum,
    White,
    as_kernel,
    kernel_or_class,
    median_distance,
)
from thalweg.processes import ClassifierSettings, fit_classifier
from thalweg.processes.learning import starting_kernels

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(20, 2))
Y = (X[:, 0] > 0).astype(int)
K = Gaussian(1.0, 10.0)
SETTINGS = ClassifierSettings(BernoulliLogit(), learn=False)
BOTH = (TypeError, ValueError)


def gp(inputs=X, labels=Y, weights=None, kernel=K, **options):
    return GPClassifier(kernel, **{"learn": False, **options}).fit(inputs, labels, weights)


MODEL = gp()
EXPECTED = MODEL.predict_proba(X)


def as_plain(model):
    """The model predicts what the one of plain arrays does."""
    return np.allclose(model.predict_proba(X), EXPECTED, atol=1e-6)


def right(model):
    """The model knows its rows and is sure of nothing."""
    found = model.predict_proba(X)
    return np.allclose(found.sum(axis=1), 1) and found.min() > 0 and np.mean(found[:, 1].round() == Y) > 0.9


def near(expected, **tolerance):
    return lambda found: np.allclose(found, expected, **tolerance)


class Frame:
    """As a data frame is: columns, and an array."""

    def __init__(self, array):
        self.array, self.shape, self.columns = array, array.shape, ["a", "b"]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)

    def __len__(self):
        return len(self.array)


def refit_with_another_width():
    model = gp(X, Y, kernel="rbf")
    return model.fit(np.hstack([X, X]), Y).predict_proba(np.hstack([X, X]))[:, 1]


CASES = [
    # Kernels: parameters.
    ("lengthscale zero", lambda: Gaussian(0.0), (ValueError, "lengthscale of Gaussian must be .* above 0, found 0")),
    ("lengthscale negative zero", lambda: Gaussian(-0.0), (ValueError, "lengthscale of Gaussian .* found -0")),
    ("lengthscale NaN", lambda: Matern12(np.nan), (ValueError, "lengthscale of Matern12 .* found nan")),
    ("lengthscale infinite", lambda: Cauchy(np.inf), (ValueError, "lengthscale of Cauchy .* found inf")),
    ("lengthscale a word", lambda: Gaussian("1.0"), (TypeError, "lengthscale of Gaussian .* found '1.0'")),
    ("lengthscale True", lambda: Gaussian(True), (TypeError, "lengthscale of Gaussian .* found True")),
    ("lengthscale complex", lambda: Gaussian(1j), (TypeError, "lengthscale of Gaussian .* found 1j")),
    ("lengthscale None", lambda: Gaussian(None), (TypeError, "lengthscale of Gaussian .* found None")),
    ("lengthscales empty", lambda: Gaussian([]), (ValueError, r"lengthscale of Gaussian .* found shape \(0,\)")),
    ("lengthscales a matrix", lambda: Gaussian(np.ones((2, 2))), (ValueError, r"lengthscale .* found shape \(2, 2\)")),
    ("lengthscales one bad", lambda: Gaussian([1, -2]), (ValueError, "lengthscale of Gaussian .* found -2 at index 1")),
    ("lengthscales of objects", lambda: Gaussian(np.array([1, "a"], object)), (TypeError, "lengthscale of Gaussian")),
    ("lengthscales ragged", lambda: Gaussian([[1.0], [1.0, 2.0]]), (BOTH, "lengthscale of Gaussian must be")),
    ("lengthscale a whole number", lambda: Gaussian(2)(X), near(Gaussian(2.0)(X))),
    ("lengthscale float16", lambda: Gaussian(np.float16(2))(X), near(Gaussian(2.0)(X), atol=1e-3)),
    ("lengthscale big-endian", lambda: Gaussian(np.array([1, 2], ">f8"))(X), near(Gaussian([1.0, 2.0])(X))),
    ("lengthscale tiny", lambda: Gaussian(1e-300)(X), near(np.eye(20))),
    ("lengthscale huge", lambda: Gaussian(1e300)(X), near(np.ones((20, 20)))),
    ("variance an array", lambda: Gaussian(1.0, [1.0, 2.0]), (BOTH, "variance of Gaussian must be a finite number")),
    ("variance zero", lambda: White(0), (ValueError, "variance of White must be .* above 0, found 0")),
    ("variance of a level", lambda: Bias("a"), (TypeError, "variance of Bias must be .* found 'a'")),
    ("period zero", lambda: Periodic(0.0), (ValueError, "period of Periodic must be .* above 0, found 0")),
    ("slopes negative", lambda: Linear([1.0, -1.0]), (ValueError, "variance of Linear .* found -1 at index 1")),
    # Kernels: points.
    ("points on a line", lambda: K(X[:, 0]), (ValueError, r"x must be a matrix .* found shape \(20,\); .* column")),
    ("no points", lambda: K(X[:0]), (ValueError, r"x must be a matrix .* found shape \(0, 2\)")),
    ("no features", lambda: K(X[:, :0]), (ValueError, r"x must be a matrix .* found shape \(20, 0\)")),
    ("three axes", lambda: K(X[None]), (ValueError, r"x must be a matrix .* found shape \(1, 20, 2\)")),
    ("points of words", lambda: K(np.array([["a", "b"]])), (TypeError, "x must be .* found .*")),
    ("points of objects", lambda: K(np.array([[1, None]], object)), (TypeError, "x must be .* found .*object")),
    ("points None", lambda: K(None), (BOTH, "x must be .* found")),
    ("points complex", lambda: K(X + 0j), (TypeError, "x must be float32 or float64, found complex128")),
    ("points float16", lambda: K(X.astype(np.float16)), (TypeError, "x must be float32 or float64, found float16")),
    (
        "points sparse",
        lambda: K(scipy.sparse.eye_array(3).tocsr()),
        (TypeError, "x must be a dense matrix, found a sp"),
    ),
    (
        "points of another width",
        lambda: K(X, X[:, :1]),
        (ValueError, "x and y must have as many features, found 2 and 1"),
    ),
    (
        "too many lengthscales",
        lambda: Gaussian([1, 2, 3])(X),
        (ValueError, "x has 2 features and the kernel 3 lengths"),
    ),
    (
        "too many slopes",
        lambda: (K + Linear([1, 2, 3]))(X),
        (ValueError, "x has 2 features and the kernel 3 variances"),
    ),
    ("points a list", lambda: K(X.tolist()), near(K(X))),
    ("points whole", lambda: K(np.array([[0], [1]])), near([[10, 10 * np.exp(-0.5)], [10 * np.exp(-0.5), 10]])),
    ("points boolean", lambda: K(np.array([[False], [True]]))[0, 1], near(10 * np.exp(-0.5))),
    ("points big-endian", lambda: K(X.astype(">f8")), near(K(X))),
    ("points backwards", lambda: K(X[::-1, ::-1]), near(np.asarray(Gaussian(1.0, 10.0)(X))[::-1, ::-1])),
    ("points far away", lambda: K(X + 2.0**40), near(K((X + 2.0**40) - 2.0**40), atol=1e-9)),
    ("points enormous", lambda: Gaussian(1e200)(X * 1e200), near(Gaussian(1.0)(X))),
    ("points equal", lambda: Laplacian()(np.ones((3, 2))), near(np.ones((3, 3)))),
    ("points masked", lambda: K(np.ma.masked_array(X, X > 9)), near(K(X))),
    ("points masked in part", lambda: K(np.ma.masked_array(X, X > 1)), (ValueError, "x must have no masked entries")),
    # Kernels: sums, names, parameters by name.
    ("kernel plus word", lambda: K + "a", (TypeError, "variance of Bias must be a finite number above 0, found 'a'")),
    ("kernel times zero", lambda: K * 0, (ValueError, "a factor of a kernel must be .* above 0, found 0")),
    ("kernel times array", lambda: np.ones(3) * K, (BOTH, "a factor of a kernel must be")),
    (
        "sum of a class",
        lambda: Sum(Gaussian, K),
        (TypeError, "k1 of Sum must be a Kernel .* the class Gaussian; call it"),
    ),
    ("an abstract kernel", lambda: Kernel()(X), (NotImplementedError, r"Kernel must define matrix\(x, y\)")),
    ("name unknown", lambda: as_kernel("RBF"), (ValueError, "kernel must be one of 'rbf', .* found 'RBF'")),
    ("name of bytes", lambda: kernel_or_class(b"rbf"), (TypeError, "kernel must be one of 'rbf', .* found b'rbf'")),
    ("parameter unknown", lambda: clone(K).set_params(scale=1), (ValueError, "'scale' is no parameter of Gaussian")),
    ("parameter too deep", lambda: clone(K).set_params(variance__a=1), (ValueError, "'variance__a' is no parameter")),
    ("parameter bad", lambda: clone(K).set_params(variance=-1), (ValueError, "variance of Gaussian .* found -1")),
    ("pickled", lambda: pickle.loads(pickle.dumps(K + White()))(X), near((K + White())(X))),
    # Random features.
    ("features of noise", lambda: RandomFeatures(White(), KEY, 2, 4), (TypeError, "White has no random features")),
    ("features of no kernel", lambda: RandomFeatures(None, KEY, 2, 4), (TypeError, "kernel must be .* found None")),
    ("features by seed", lambda: RandomFeatures(K, 0, 2, 4), (TypeError, "key must be one JAX random key .* found 0")),
    (
        "features by halves",
        lambda: RandomFeatures(K, KEY, 2, 0.5),
        (TypeError, "block_size must be a whole .* found 0.5"),
    ),
    (
        "features kind",
        lambda: RandomFeatures(K, KEY, 2, 4, "sobol"),
        (ValueError, "kind must be one of .* found 'sobol'"),
    ),
    ("features of a wide x", lambda: RandomFeatures(K, KEY, 3, 4)(X, 0), (ValueError, "x must have the 3 features")),
    ("frequencies negative", lambda: K.frequencies(KEY, -1, 2), (ValueError, "count must be a whole .* found -1")),
    (
        "frequencies no key",
        lambda: K.frequencies(None, 1, 2),
        (TypeError, "key must be one JAX random key .* found None"),
    ),
    # Distances.
    ("distance of NaN", lambda: median_distance(np.full((3, 2), np.nan), KEY), (ValueError, "x must be finite")),
    (
        "distance of one",
        lambda: median_distance(X[:1], KEY),
        (ValueError, r"x must .* two points.* found shape \(1, 2\)"),
    ),
    (
        "distance of equals",
        lambda: median_distance(np.ones((3, 2)), KEY),
        (ValueError, "x must have points that differ"),
    ),
    (
        "distance of words",
        lambda: median_distance([["a"], ["b"]], KEY),
        (TypeError, "x must hold real numbers, found <U1"),
    ),
    ("distance huge", lambda: median_distance(np.array([[0.0], [1e200]]), KEY), near(1e200)),
    # GPClassifier: rows.
    ("X NaN", lambda: gp(np.where(X > 1, np.nan, X)), (ValueError, "X contains NaN")),
    ("X infinite", lambda: gp(np.where(X > 1, np.inf, X)), (ValueError, "X contains infinity")),
    ("X empty", lambda: gp(X[:0], Y[:0]), (ValueError, "0 sample")),
    ("X a vector", lambda: gp(X[:, 0]), (ValueError, "Expected 2D array")),
    ("X a word", lambda: gp("X"), (ValueError, "could not convert string to float: 'X'")),
    ("X of words", lambda: gp(np.full((20, 2), "a")), (ValueError, "could not convert string to float")),
    ("X complex", lambda: gp(X + 1j), (ValueError, "Complex data not supported")),
    ("X sparse", lambda: gp(scipy.sparse.csr_array(X)), (TypeError, "Sparse data was passed")),
    ("X short", lambda: gp(X[:19]), (ValueError, "inconsistent numbers of samples")),
    ("X a generator", lambda: gp(row for row in X), (TypeError, "a real number, not 'generator'")),
    ("X numbers as words", lambda: gp(X.astype(str)), as_plain),
    ("X of objects", lambda: gp(X.astype(object)), as_plain),
    ("X a list", lambda: gp(X.tolist(), Y.tolist()), as_plain),
    ("X big-endian", lambda: gp(X.astype(">f8")), as_plain),
    ("X not contiguous", lambda: gp(np.repeat(X, 2, axis=1)[:, ::2]), as_plain),
    ("X of another framework", lambda: gp(jnp.asarray(X)), as_plain),
    ("X a frame", lambda: gp(Frame(X)), as_plain),
    ("X huge", lambda: gp(X * 1e150, kernel=None).predict_proba(X * 1e150), near(gp(X, kernel=None).predict_proba(X))),
    ("X tiny", lambda: gp(X * 1e-150, kernel=None).predict_proba(X * 1e-150), near(gp(kernel=None).predict_proba(X))),
    ("X constant", lambda: gp(np.ones((20, 2)), kernel=None).predict_proba(X[:1])[0, 1], lambda p: 0.3 < p < 0.8),
    ("one constant column", lambda: gp(np.c_[X, X[:, :1] * 0 + 5], kernel=None).elbo_, near(gp(kernel=None).elbo_)),
    ("rows twice", lambda: gp(np.r_[X, X], np.r_[Y, Y], jitter=0.0), right),
    ("rows that disagree", lambda: gp(np.r_[X, X], np.r_[Y, 1 - Y]).predict_proba(X), near(0.5, atol=1e-3)),
    ("two rows", lambda: gp([[0.0], [1.0]], [0, 1], kernel=None).predict([[-1.0], [2.0]]), near([0, 1])),
    # GPClassifier: labels and weights.
    ("y one class", lambda: gp(X, np.ones(20)), (ValueError, "y must hold at least two classes, found one class")),
    ("y continuous", lambda: gp(X, X[:, 0]), (ValueError, "Unknown label type: continuous")),
    ("y NaN", lambda: gp(X, np.where(Y > 0, 1.0, np.nan)), (ValueError, "Input y contains NaN")),
    ("y two columns", lambda: gp(X, np.c_[Y, Y]), (ValueError, "y should be a 1d array")),
    ("y None", lambda: gp(X, None), (ValueError, "requires y to be passed")),
    ("y words", lambda: gp(X, np.where(Y, "yes", "no")).predict(X[:2]), lambda p: set(p) <= {"yes", "no"}),
    ("y booleans", lambda: gp(X, Y.astype(bool)), as_plain),
    ("y −1 and 1", lambda: gp(X, 2 * Y - 1), as_plain),
    ("weights negative", lambda: gp(X, Y, -np.ones(20)), (ValueError, "sample_weight must be non-negative")),
    (
        "weights zero",
        lambda: gp(X, Y, np.zeros(20)),
        (ValueError, "Sample weights must contain at least one non-zero number"),
    ),
    ("weights NaN", lambda: gp(X, Y, np.full(20, np.nan)), (ValueError, "sample_weight contains NaN")),
    ("weights short", lambda: gp(X, Y, np.ones(3)), (ValueError, "sample_weight.shape")),
    ("weights a number", lambda: gp(X, Y, 1.0), as_plain),
    ("weights huge", lambda: gp(X, Y, np.full(20, 1e6)), right),
    # GPClassifier: parameters.
    ("kernel word", lambda: gp(kernel="rbff"), (ValueError, "kernel must be one of 'rbf', .* found 'rbff'")),
    ("kernel number", lambda: gp(kernel=1.0), (ValueError, "'kernel' parameter of GPClassifier must be .* Got 1.0")),
    ("kernel class of no kernel", lambda: gp(kernel=int), (TypeError, "kernel must be one of .* found <class 'int'>")),
    ("kernel of others", lambda: gp(kernel=np.dot), (ValueError, "'kernel' parameter of GPClassifier must be")),
    (
        "kernel too wide",
        lambda: gp(kernel=Gaussian([1, 2, 3])),
        (ValueError, "2 features and the kernel 3 lengthscales"),
    ),
    ("kernel of float32", lambda: gp(kernel=Gaussian(np.float32(1), np.float32(10))), as_plain),
    ("kernel fitted before", lambda: gp(kernel=clone(MODEL.kernel_)), as_plain),
    ("kernel of noise", lambda: gp(kernel=White()).predict_proba(X), near(0.5)),
    ("likelihood of counts", lambda: gp(likelihood=Poisson()), (ValueError, "likelihood must be .* found Poisson")),
    ("likelihood word", lambda: gp(likelihood="cauchit"), (ValueError, "'likelihood' parameter .* Got 'cauchit'")),
    ("learn a word", lambda: gp(learn="no"), (ValueError, "'learn' parameter of GPClassifier must be .* Got 'no'")),
    ("learn 2", lambda: gp(learn=2), (ValueError, "'learn' parameter of GPClassifier must be .* Got 2")),
    ("jitter negative", lambda: gp(jitter=-1e-9), (ValueError, "'jitter' parameter .* Got -1e-09")),
    ("jitter NaN", lambda: gp(jitter=np.nan), (ValueError, "'jitter' parameter .* Got nan")),
    ("jitter infinite", lambda: gp(jitter=np.inf), (ValueError, "'jitter' parameter .* Got inf")),
    ("jitter huge", lambda: gp(jitter=1e3).predict_proba(X), near(0.5, atol=0.25)),
    ("tol infinite", lambda: gp(tol=np.inf), (ValueError, "'tol' parameter .* Got inf")),
    ("step infinite", lambda: gp(step=np.inf), (ValueError, "'step' parameter .* Got inf")),
    ("max_iter zero", lambda: gp(max_iter=0), (ValueError, "'max_iter' parameter .* Got 0")),
    ("batch_size zero", lambda: gp(batch_size=0), (ValueError, "'batch_size' parameter .* Got 0")),
    ("random_state a word", lambda: gp(random_state="a"), (ValueError, "'random_state' parameter .* Got 'a'")),
    # GPClassifier: afterwards.
    ("not fitted", lambda: GPClassifier().predict(X), (NotFittedError, "not fitted")),
    (
        "predict another width",
        lambda: MODEL.predict(X[:, :1]),
        (ValueError, "X has 1 features, but GPClassifier is exp"),
    ),
    ("predict NaN", lambda: MODEL.predict_proba(X * np.nan), (ValueError, "X contains NaN")),
    ("predict nothing", lambda: MODEL.predict(X[:0]), (ValueError, "0 sample")),
    ("predict far away", lambda: MODEL.predict_proba([[1e300, -1e300]]), near(0.5)),
    ("predict one row", lambda: MODEL.predict_proba(X[3:4]), near(EXPECTED[3:4])),
    ("predict float32", lambda: MODEL.predict_proba(X.astype(np.float32)), near(EXPECTED, atol=1e-5)),
    ("refit with another width", refit_with_another_width, lambda p: np.mean(p.round() == Y) > 0.9),
    # Processes.
    (
        "process of a word",
        lambda: fit_classifier(X, Y * 1.0, SETTINGS, "a"),
        (ValueError, "kernel must be one of 'rbf'"),
    ),
    (
        "process of other targets",
        lambda: fit_classifier(X, Y + 3.0, SETTINGS, K),
        (ValueError, "y must be labels 0 or 1"),
    ),
    ("default kernel of one row", lambda: starting_kernels(X[:1])[0].lengthscale, near(1.0)),
    ("default kernel of equal rows", lambda: starting_kernels(np.ones((5, 2)))[0].lengthscale, near(1.0)),
]


@pytest.mark.parametrize(("call", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_clear_error_or_a_right_answer(call, expected):
    if callable(expected):
        assert expected(call())
    else:
        with pytest.raises(expected[0], match=expected[1]):
            call()

"""Hostile inputs to spectral sums, one line a case: a clear error that names the argument and what was found, or right.

A case is (name, call, expected): an exception with a pattern of its message, or the right value, which the result must
have within what its own error bar says.
"""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from jax.experimental.sparse import BCOO

import thalweg
import thalweg.spectral as sp
from thalweg.kernels import Gaussian

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 8))
A = X.T @ X / 12 + 0.5 * np.eye(8)
LOG = np.linalg.slogdet(A)[1]
INVERSE = np.trace(np.linalg.inv(A))
EIGENVALUES = np.linalg.eigvalsh(A)
SINGULAR = np.linalg.svd(X, compute_uv=False)
SPARSE = scipy.sparse.csr_matrix(A)
PAIRS = BCOO(jax.device_put((A.ravel(), np.argwhere(A))), shape=A.shape)
SPD = (ValueError, "A must be positive definite")
STOCHASTIC = {"method": "stochastic", "probes": 4}


@cache
def plan():
    """A plan, which is not made while tests are collected."""
    with jax.enable_x64(True):
        return sp.plan("log", A, KEY, probes=4)


class Frame:
    """What a data frame shows of itself."""

    def __init__(self, values):
        self.values, self.shape = values, np.shape(values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def with_entry(value, dtype=float):
    B = A.astype(dtype)
    B[2, 3] = B[3, 2] = value
    return B


def big_endian():
    return A.astype(">f8")


def not_contiguous():
    return np.repeat(np.repeat(A, 2, 0), 2, 1)[::2, ::2]


def masked():
    return np.ma.MaskedArray(A, mask=np.eye(8, dtype=bool))


LOGDET = [
    # What A is.
    ("None", lambda: sp.logdet(None, KEY), (TypeError, "A must be .*found NoneType")),
    ("a word", lambda: sp.logdet("A", KEY), (TypeError, "A must be .*found str")),
    ("bytes", lambda: sp.logdet(b"A", KEY), (TypeError, "A must be .*found bytes")),
    ("a dict", lambda: sp.logdet({"a": 1}, KEY), (TypeError, "A must be .*found dict")),
    ("a set", lambda: sp.logdet({1.0}, KEY), (TypeError, "A must be .*found set")),
    ("a generator", lambda: sp.logdet((row for row in A), KEY), (TypeError, "A must be .*found generator")),
    ("an object", lambda: sp.logdet(object(), KEY), (TypeError, "A must be .*found object")),
    ("a class", lambda: sp.logdet(np.ndarray, KEY), (TypeError, "A must be .*found type")),
    ("strings as numbers", lambda: sp.logdet(A.astype(str), KEY), (TypeError, "A must be .*found ndarray")),
    ("an array of objects", lambda: sp.logdet(A.astype(object), KEY), (TypeError, "A must be .*found ndarray")),
    ("dates", lambda: sp.logdet(np.zeros((2, 2), "M8[D]"), KEY), (TypeError, "A must be .*found ndarray")),
    ("records", lambda: sp.logdet(np.zeros((2, 2), [("a", float)]), KEY), (TypeError, "A must be .*found ndarray")),
    ("ragged lists", lambda: sp.logdet([[1.0, 0.0], [0.0]], KEY), (TypeError, "A must be .*found list")),
    ("a list of words", lambda: sp.logdet([["x", "y"], ["y", "x"]], KEY), (TypeError, "A must be .*found list")),
    ("a list", lambda: sp.logdet(A.tolist(), KEY), LOG),
    ("a tuple of arrays", lambda: sp.logdet(tuple(A), KEY), LOG),
    ("a DataFrame", lambda: sp.logdet(Frame(A), KEY), LOG),
    ("a DataFrame of words", lambda: sp.logdet(Frame([["x"]]), KEY), (TypeError, "A must be .*found Frame")),
    ("a matrix of NumPy", lambda: sp.logdet(np.asmatrix(A), KEY), LOG),
    ("a masked array", lambda: sp.logdet(masked(), KEY), (ValueError, "A must have no masked entries")),
    ("a masked array, nothing masked", lambda: sp.logdet(np.ma.MaskedArray(A), KEY), LOG),
    ("big-endian", lambda: sp.logdet(big_endian(), KEY), LOG),
    ("not contiguous", lambda: sp.logdet(not_contiguous(), KEY), LOG),
    ("Fortran's order", lambda: sp.logdet(np.asfortranarray(A), KEY), LOG),
    ("read-only", lambda: sp.logdet(np.broadcast_to(A, A.shape), KEY), LOG),
    ("long double", lambda: sp.logdet(A.astype(np.longdouble), KEY), LOG),
    ("float16", lambda: sp.logdet(np.diag([2.0, 4.0]).astype(np.float16), KEY), np.log(8.0)),
    ("bfloat16", lambda: sp.logdet(np.diag([2.0, 4.0]).astype(jnp.bfloat16), KEY), np.log(8.0)),
    ("whole numbers", lambda: sp.logdet(np.array([[3, 1], [1, 3]]), KEY), np.log(8.0)),
    ("unsigned bytes", lambda: sp.logdet(np.array([[3, 1], [1, 3]], np.uint8), KEY), np.log(8.0)),
    ("truth values", lambda: sp.logdet(np.eye(3, dtype=bool), KEY), 0.0),
    ("complex", lambda: sp.logdet(A.astype(complex), KEY), (TypeError, "real and symmetric, found dtype complex")),
    ("one number", lambda: sp.logdet(3.0, KEY), (ValueError, r"A must be square, found shape \(\)")),
    ("a vector", lambda: sp.logdet(np.ones(3), KEY), (ValueError, r"A must be square, found shape \(3,\)")),
    ("three axes", lambda: sp.logdet(np.ones((2, 2, 2)), KEY), (ValueError, r"square, found shape \(2, 2, 2\)")),
    ("not square", lambda: sp.logdet(X, KEY), (ValueError, r"A must be square, found shape \(12, 8\)")),
    ("empty", lambda: sp.logdet(np.zeros((0, 0)), KEY), (ValueError, "A is empty")),
    ("an empty list", lambda: sp.logdet([], KEY), (ValueError, r"A must be square, found shape \(0,\)")),
    ("one by one", lambda: sp.logdet([[5.0]], KEY), np.log(5.0)),
    ("NaN", lambda: sp.logdet(with_entry(np.nan), KEY), (ValueError, "A holds NaN or infinity")),
    ("infinity", lambda: sp.logdet(with_entry(np.inf), KEY), (ValueError, "A holds NaN or infinity")),
    ("all NaN", lambda: sp.logdet(np.full((3, 3), np.nan), KEY), (ValueError, "A holds NaN or infinity")),
    ("NaN, estimated", lambda: sp.logdet(with_entry(np.nan), KEY, **STOCHASTIC), (ValueError, "A holds NaN")),
    ("zeros", lambda: sp.logdet(np.zeros((3, 3)), KEY), SPD),
    (
        "zeros, estimated",
        lambda: sp.logdet(np.zeros((8, 8)), KEY, **STOCHASTIC),
        (ValueError, "A .*(definite|singular)"),
    ),
    ("ones", lambda: sp.logdet(np.ones((3, 3)), KEY), SPD),
    ("one row twice", lambda: sp.logdet(A[[0, 0, 1]][:, [0, 0, 1]], KEY), SPD),
    ("a zero on the diagonal", lambda: sp.logdet(np.diag([1.0, 0.0, 2.0]), KEY), SPD),
    ("negative definite", lambda: sp.logdet(-A, KEY), (ValueError, "smallest eigenvalue is at most -")),
    ("negative definite, estimated", lambda: sp.logdet(-A, KEY, **STOCHASTIC), (ValueError, "vᵀAv/vᵀv = -")),
    ("indefinite", lambda: sp.logdet(with_entry(9.0), KEY), SPD),
    ("a Gram matrix of low rank", lambda: sp.logdet(X @ X.T, KEY), SPD),
    ("triangular", lambda: sp.logdet(np.tril(A), KEY), (ValueError, "A must be symmetric")),
    ("not quite symmetric", lambda: sp.logdet(A + 1e-6 * np.eye(8, k=1), KEY), (ValueError, "A must be symmetric")),
    ("symmetric up to rounding", lambda: sp.logdet(A * (1 + 1e-15 * RNG.standard_normal((8, 8))), KEY), LOG),
    ("A · 1e30", lambda: sp.logdet(A * 1e30, KEY), LOG + 8 * np.log(1e30)),
    ("A · 1e-30", lambda: sp.logdet(A * 1e-30, KEY), LOG + 8 * np.log(1e-30)),
    ("A · 1e300", lambda: sp.logdet(A * 1e300, KEY), LOG + 8 * np.log(1e300)),
    (
        "A · 1e300, estimated",
        lambda: sp.logdet(A * 1e300, KEY, **STOCHASTIC),
        (ValueError, "A is of the order of .*large"),
    ),
    (
        "A · 1e-300, estimated",
        lambda: sp.logdet(A * 1e-300, KEY, **STOCHASTIC),
        (ValueError, "A is of the order .*small"),
    ),
    ("columns of 40 orders", lambda: sp.logdet(np.diag(np.logspace(-20, 20, 9)), KEY), 0.0),
    ("the identity", lambda: sp.logdet(np.eye(300), KEY), 0.0),
    # Sparse matrices and operators.
    ("CSR", lambda: sp.logdet(SPARSE, KEY), LOG),
    ("CSC of whole numbers", lambda: sp.logdet(scipy.sparse.csc_matrix(np.array([[3, 1], [1, 3]])), KEY), np.log(8.0)),
    ("a sparse array", lambda: sp.logdet(scipy.sparse.coo_array(A), KEY), LOG),
    (
        "duplicates in COO",
        lambda: sp.logdet(scipy.sparse.coo_matrix(([1.0, 1.0, 3.0], ([0, 0, 1], [0, 0, 1]))), KEY),
        np.log(6.0),
    ),
    ("sparse NaN", lambda: sp.logdet(scipy.sparse.csr_matrix(with_entry(np.nan)), KEY), (ValueError, "A holds NaN")),
    ("sparse and empty rows", lambda: sp.logdet(scipy.sparse.csr_matrix((3, 3)), KEY), SPD),
    ("sparse complex", lambda: sp.logdet(SPARSE * 1j, KEY), (TypeError, "A must be real")),
    (
        "sparse, not square",
        lambda: sp.logdet(scipy.sparse.eye(3, 4), KEY),
        (ValueError, r"square, found shape \(3, 4\)"),
    ),
    (
        "sparse, not symmetric",
        lambda: sp.logdet(scipy.sparse.csr_array(np.tril(A)), KEY),
        (ValueError, "A must be symmetric"),
    ),
    ("sparse float32", lambda: sp.logdet(SPARSE.astype(np.float32), KEY), LOG),
    ("BCOO", lambda: sp.logdet(PAIRS, KEY), LOG),
    ("SciPy's operator", lambda: sp.logdet(scipy.sparse.linalg.aslinearoperator(A), KEY), LOG),
    (
        "a kernel",
        lambda: sp.logdet(sp.ShiftedOperator(sp.KernelOperator(Gaussian(), np.zeros((2, 1))), 1.0), KEY),
        np.log(3.0),
    ),
    ("a kernel of points twice", lambda: sp.logdet(sp.KernelOperator(Gaussian(), np.zeros((2, 1))), KEY), SPD),
    ("no noise", lambda: sp.logdet(sp.ShiftedOperator(sp.as_operator(np.zeros((3, 3))), 0.5), KEY), 3 * np.log(0.5)),
    ("a sum", lambda: sp.logdet(sp.as_operator(np.eye(3)) + sp.as_operator(np.eye(3)), KEY), 3 * np.log(2.0)),
    ("a function", lambda: sp.logdet(lambda v: 2 * v, KEY, dimension=5), 5 * np.log(2.0)),
    ("a function, no dimension", lambda: sp.logdet(lambda v: v, KEY), (ValueError, "pass dimension=")),
    (
        "a function, dimension 0",
        lambda: sp.logdet(lambda v: v, KEY, dimension=0),
        (ValueError, "dimension must be .*found 0"),
    ),
    (
        "a function, dimension 2.5",
        lambda: sp.logdet(lambda v: v, KEY, dimension=2.5),
        (TypeError, "dimension must be .*2.5"),
    ),
    (
        "a function, dimension True",
        lambda: sp.logdet(lambda v: v, KEY, dimension=True),
        (TypeError, "dimension .*True"),
    ),
    (
        "a wrong dimension",
        lambda: sp.logdet(A, KEY, dimension=7),
        (ValueError, "dimension must be that of A, 8.*found 7"),
    ),
    ("a dimension in words", lambda: sp.logdet(A, KEY, dimension="8"), (TypeError, "dimension must be .*found '8'")),
    ("the right dimension", lambda: sp.logdet(A, KEY, dimension=8), LOG),
    (
        "a function of another shape",
        lambda: sp.logdet(lambda v: v[:2], KEY, dimension=5),
        (ValueError, "A must map a block"),
    ),
    (
        "a function that is not linear",
        lambda: sp.logdet(lambda v: v**2, KEY, dimension=5, **STOCHASTIC),
        (ValueError, "A must be symmetric"),
    ),
    # Keys.
    ("no key", lambda: sp.logdet(A, None), (TypeError, "key must be one JAX random key.*found None")),
    ("a whole number as key", lambda: sp.logdet(A, 0), (TypeError, "key must be .*found 0")),
    ("NumPy's generator as key", lambda: sp.logdet(A, RNG), (TypeError, "key must be .*Generator")),
    ("two keys", lambda: sp.logdet(A, jax.random.split(KEY, 2)), (TypeError, "key must be one JAX random key")),
    ("an old key", lambda: sp.logdet(A, jax.random.PRNGKey(0)), LOG),
    ("an old key, estimated", lambda: sp.logdet(3 * np.eye(8), jax.random.PRNGKey(0), **STOCHASTIC), 8 * np.log(3.0)),
]

OPTIONS = [
    (
        "an option unknown",
        lambda: sp.logdet(A, KEY, samples=3),
        (TypeError, "no option 'samples', found samples=3; it has"),
    ),
    ("method", lambda: sp.logdet(A, KEY, method="fast"), (ValueError, "method must be one of 'auto'.*found 'fast'")),
    ("method None", lambda: sp.logdet(A, KEY, method=None), (ValueError, "method must be one of .*found None")),
    ("rtol 0", lambda: sp.logdet(A, KEY, rtol=0), (ValueError, "rtol must be .*above 0, found 0")),
    ("rtol NaN", lambda: sp.logdet(A, KEY, rtol=np.nan), (ValueError, "rtol must be .*found nan")),
    ("rtol in words", lambda: sp.logdet(A, KEY, rtol="1e-3"), (TypeError, "rtol must be .*found '1e-3'")),
    ("atol negative", lambda: sp.logdet(A, KEY, atol=-1.0), (ValueError, "atol must be .*found -1.0")),
    ("rtol tiny", lambda: sp.logdet(A, KEY, rtol=1e-12), LOG),
    ("budget alone", lambda: sp.logdet(A, KEY, budget=5), (ValueError, "budget limits .*found budget=5")),
    ("budget 1.5", lambda: sp.logdet(A, KEY, rtol=0.1, budget=1.5), (TypeError, "budget must be a whole number.*1.5")),
    ("budget 0", lambda: sp.logdet(A, KEY, rtol=0.1, budget=0), (ValueError, "budget must be .*found 0")),
    ("probes 0", lambda: sp.logdet(A, KEY, probes=0), (ValueError, "probes must be .*found 0")),
    ("probes 3", lambda: sp.logdet(A, KEY, probes=3), (ValueError, "probes must be a multiple of 2.*found 3")),
    ("probes 4.0", lambda: sp.logdet(A, KEY, probes=4.0), (TypeError, "probes must be a whole number.*4.0")),
    ("probes True", lambda: sp.logdet(A, KEY, probes=True), (TypeError, "probes must be a whole number.*True")),
    ("degree 0", lambda: sp.logdet(A, KEY, degree=0), (ValueError, "degree must be .*found 0")),
    ("degree NaN", lambda: sp.logdet(A, KEY, degree=np.nan), (ValueError, "degree must be .*found nan")),
    ("degree in words", lambda: sp.logdet(A, KEY, degree="ten"), (TypeError, "degree must be .*found 'ten'")),
    ("law", lambda: sp.logdet(A, KEY, law="normal"), (ValueError, "law must be one of .*found 'normal'")),
    ("rho", lambda: sp.logdet(A, KEY, rho=0.5), (ValueError, "rho must be .*above 1, found 0.5")),
    ("slack", lambda: sp.logdet(A, KEY, slack=0.5), (ValueError, "slack must be .*found 0.5")),
    ("interval 3", lambda: sp.logdet(A, KEY, interval=3), (ValueError, "interval must be .*found 3")),
    ("interval of one", lambda: sp.logdet(A, KEY, interval=(1.0,)), (ValueError, r"interval must be .*found \(1.0,\)")),
    ("interval reversed", lambda: sp.logdet(A, KEY, interval=(2, 1)), (ValueError, "lower < upper, found")),
    ("interval NaN", lambda: sp.logdet(A, KEY, interval=(np.nan, 1)), (ValueError, "ends of interval must be .*nan")),
    (
        "interval in words",
        lambda: sp.logdet(A, KEY, interval=("0", "1")),
        (TypeError, "ends of interval must be .*'0'"),
    ),
    (
        "interval too narrow",
        lambda: sp.logdet(A, KEY, interval=(1.0, 1.1), **STOCHASTIC),
        (ValueError, "does not hold"),
    ),
    (
        "interval around 0",
        lambda: sp.logdet(A, KEY, interval=(-1.0, 9.0), **STOCHASTIC),
        (ValueError, "not finite on the interval"),
    ),
    ("probe", lambda: sp.logdet(A, KEY, probe="uniform"), (ValueError, "probe must be one of .*found 'uniform'")),
    ("group 0", lambda: sp.logdet(A, KEY, group=0), (ValueError, "group must be .*found 0")),
    (
        "group 9 of 8",
        lambda: sp.logdet(A, KEY, probe="orthogonal", probes=18, group=9),
        (ValueError, "group .*1 to 8, found 9"),
    ),
    ("gradient", lambda: sp.logdet(A, KEY, gradient="exact"), (ValueError, "gradient must be one of .*found 'exact'")),
    ("precision", lambda: sp.logdet(A, KEY, precision="double"), (ValueError, "precision must be one of .*'double'")),
    (
        "preconditioner in words",
        lambda: sp.logdet(A, KEY, preconditioner="jacobi"),
        (TypeError, "preconditioner must be .*'jacobi'"),
    ),
    (
        "preconditioner's class",
        lambda: sp.logdet(A, KEY, preconditioner=sp.Jacobi),
        (TypeError, r"call it first: Jacobi\("),
    ),
    (
        "preconditioner of exp",
        lambda: sp.estrada(A, KEY, preconditioner=sp.Jacobi()),
        (ValueError, "preconditioner works for log"),
    ),
    (
        "rank of more than A",
        lambda: sp.logdet(A, KEY, preconditioner=sp.Nystrom(rank=9), **STOCHASTIC),
        (ValueError, "rank of Nystrom .*found 9"),
    ),
    (
        "noise above the spectrum",
        lambda: sp.logdet(A, KEY, preconditioner=sp.PivotedCholesky(noise=99.0), **STOCHASTIC),
        (ValueError, "A|noise"),
    ),
    (
        "Jacobi of a zero",
        lambda: sp.logdet(np.diag([0.0, 1.0] * 4), KEY, preconditioner=sp.Jacobi(), **STOCHASTIC),
        SPD,
    ),
    ("plan True", lambda: sp.logdet(A, KEY, plan=True), (TypeError, "plan must be a Plan, found True")),
    (
        "plan of another sum",
        lambda: sp.trace_inverse(A, KEY, plan=plan()),
        (ValueError, "plan was made for another function"),
    ),
    (
        "plan of another size",
        lambda: sp.logdet(np.eye(3), KEY, plan=plan()),
        (ValueError, "dimension 8, found dimension 3"),
    ),
    ("plan and probes", lambda: sp.logdet(A, KEY, plan=plan(), probes=4), (ValueError, "probes belongs to the plan")),
    ("plan and exact", lambda: sp.logdet(A, KEY, plan=plan(), method="exact"), (ValueError, "makes no use of a plan")),
    ("plan of another matrix", lambda: sp.logdet(50 * A, KEY, plan=plan()), (ValueError, "eigenvalue lies above")),
    (
        "plan within jit",
        lambda: jax.jit(lambda a: sp.plan("log", a, KEY).lower)(A),
        (TypeError, "make the plan outside"),
    ),
    (
        "an estimate within jit",
        lambda: jax.jit(lambda a: sp.logdet(a, KEY, method="stochastic"))(A),
        (TypeError, "outside jit"),
    ),
    (
        "nothing traced within jit",
        lambda: jax.jit(lambda: sp.logdet(A, KEY, method="stochastic"))(),
        (TypeError, "outside jit"),
    ),
    ("exact within jit", lambda: jax.jit(lambda a: sp.logdet(a, KEY))(A), LOG),
    ("exact within vmap", lambda: jax.tree.map(lambda x: x[0], jax.vmap(lambda a: sp.logdet(a, KEY))(A[None])), LOG),
]

SUMS = [
    ("f of NumPy", lambda: sp.spectral_sum(np.sqrt, A, KEY), np.sum(np.sqrt(EIGENVALUES))),
    (
        "f within NumPy",
        lambda: sp.spectral_sum(lambda x: np.log(x) + 1, A, KEY),
        (TypeError, r"f must be .*jax\.numpy"),
    ),
    (
        "f of the math module",
        lambda: sp.spectral_sum(__import__("math").log, A, KEY),
        (TypeError, r"f must be .*jax\.numpy"),
    ),
    ("f a number", lambda: sp.spectral_sum(2.0, A, KEY), (TypeError, "f must be a function .*found 2.0")),
    ("f a word unknown", lambda: sp.spectral_sum("sqrt", A, KEY), (TypeError, "f must be a function .*found 'sqrt'")),
    ("f None", lambda: sp.spectral_sum(None, A, KEY), (TypeError, "f must be a function .*found None")),
    ("f of two numbers", lambda: sp.spectral_sum(jnp.power, A, KEY), (TypeError, "f must be .*one array")),
    ("f that adds up", lambda: sp.spectral_sum(jnp.sum, A, KEY), (TypeError, "f must be elementwise")),
    ("f that returns nothing", lambda: sp.spectral_sum(lambda x: None, A, KEY), (TypeError, "f must")),
    (
        "f complex",
        lambda: sp.spectral_sum(lambda x: 1j * x, A, KEY),
        (TypeError, "f must (return real|be .*TypePromotionError)"),
    ),
    ("f that raises", lambda: sp.spectral_sum(lambda x: 1 / 0, A, KEY), (TypeError, "ZeroDivisionError")),
    (
        "f with an if",
        lambda: sp.spectral_sum(lambda x: x if x > 0 else -x, A, KEY),
        (TypeError, r"f must be .*jax\.numpy"),
    ),
    ("f constant", lambda: sp.spectral_sum(lambda x: 1.0, A, KEY), 8.0),
    ("f zero", lambda: sp.spectral_sum(lambda x: 0 * x, A, KEY), 0.0),
    (
        "f undefined on the spectrum",
        lambda: sp.spectral_sum(jnp.arccos, A + 3 * np.eye(8), KEY),
        (ValueError, "f is not finite at an eigenvalue"),
    ),
    ("f with a kink", lambda: sp.spectral_sum(jnp.abs, A - np.eye(8), KEY), np.sum(np.abs(EIGENVALUES - 1))),
    ("the inverse", lambda: sp.trace_inverse(A, KEY), INVERSE),
    ("the inverse of nothing", lambda: sp.trace_inverse(np.zeros((3, 3)), KEY), SPD),
    ("the inverse, indefinite", lambda: sp.trace_inverse(np.diag([1.0, -1.0, 3.0]), KEY), SPD),
    ("time by another name", lambda: sp.trace_exp(A, KEY, t=2.0), (TypeError, "no option 't', found t=2.0")),
    ("time in words", lambda: sp.trace_exp(A, KEY, time="2"), (TypeError, "time must be .*found '2'")),
    ("time NaN", lambda: sp.trace_exp(A, KEY, time=np.nan), (ValueError, "time must be .*found nan")),
    ("time 0", lambda: sp.trace_exp(A, KEY, time=0), 8.0),
    ("exp too large", lambda: sp.estrada(1e4 * A, KEY), (ValueError, "f is not finite at an eigenvalue")),
    ("an empty graph", lambda: sp.estrada(np.zeros((4, 4)), KEY), 4.0),
    ("a graph of truth values", lambda: sp.estrada(~np.eye(3, dtype=bool), KEY), np.exp(2.0) + 2 * np.exp(-1.0)),
    ("a directed graph", lambda: sp.estrada(np.eye(3, k=1), KEY), (ValueError, "A must be symmetric")),
    ("entropy of nothing", lambda: sp.entropy(np.zeros((3, 3)), KEY), 0.0),
    ("entropy of a pure state", lambda: sp.entropy(np.outer(X[0], X[0]) / (X[0] @ X[0]), KEY), 0.0),
    ("entropy, indefinite", lambda: sp.entropy(np.diag([1.0, -0.1]), KEY), (ValueError, "semi-definite.*-0.1")),
    ("p 0", lambda: sp.schatten_norm(X, KEY, p=0), (ValueError, "p must be .*above 0, found 0")),
    ("p infinite", lambda: sp.schatten_norm(X, KEY, p=np.inf), (ValueError, "p must be a finite number.*found inf")),
    ("p missing", lambda: sp.schatten_norm(X, KEY), (TypeError, "'p'")),
    ("p 3", lambda: sp.schatten_norm(X, KEY, p=3), np.sum(SINGULAR**3) ** (1 / 3)),
    ("smoothing negative", lambda: sp.nuclear_norm(X, KEY, smoothing=-1), (ValueError, "smoothing must be .*found -1")),
    (
        "smoothing in words",
        lambda: sp.nuclear_norm(X, KEY, smoothing="0"),
        (TypeError, "smoothing must be .*found '0'"),
    ),
    ("a wide matrix", lambda: sp.nuclear_norm(X.T, KEY), np.sum(SINGULAR)),
    ("a matrix of low rank", lambda: sp.nuclear_norm(np.ones((4, 3)), KEY), np.sqrt(12.0)),
    ("a matrix of zeros", lambda: sp.nuclear_norm(np.zeros((4, 3)), KEY), 0.0),
    ("a vector's norm", lambda: sp.nuclear_norm(np.ones(3), KEY), (ValueError, r"X must be a matrix, found .*\(3,\)")),
    ("an empty matrix", lambda: sp.nuclear_norm(np.zeros((0, 3)), KEY), (ValueError, "X is empty")),
    ("a matrix with NaN", lambda: sp.nuclear_norm(np.full((3, 2), np.nan), KEY), (ValueError, "NaN or infinity")),
    ("whole numbers' norm", lambda: sp.nuclear_norm(np.array([[3, 4]]), KEY), 5.0),
    ("a sparse matrix's norm", lambda: sp.nuclear_norm(scipy.sparse.csr_matrix(X), KEY), np.sum(SINGULAR)),
    ("complex norm", lambda: sp.nuclear_norm(1j * X, KEY), (TypeError, "real")),
]

PARTS = [
    ("level 1.5", lambda: sp.logdet(A, KEY).interval(1.5), (ValueError, "level must be .*found 1.5")),
    ("level in words", lambda: sp.logdet(A, KEY).interval("95%"), (TypeError, "level must be .*found '95%'")),
    (
        "noise of an operator",
        lambda: sp.ShiftedOperator(sp.as_operator(A), np.ones(8)),
        (ValueError, r"noise .*shape \(8,\)"),
    ),
    ("rank 0", lambda: sp.PivotedCholesky(rank=0), (ValueError, "rank of PivotedCholesky must be .*found 0")),
    ("rank 2.0", lambda: sp.Nystrom(rank=2.0), (TypeError, "rank of Nystrom must be .*found 2.0")),
    ("noise NaN", lambda: sp.PivotedCholesky(noise=np.nan), (ValueError, "noise of PivotedCholesky must be .*nan")),
    ("points in a row", lambda: sp.KernelOperator(Gaussian(), np.ones(3)), (ValueError, r"points must have .*\(3,\)")),
    ("rows 0", lambda: sp.KernelOperator(Gaussian(), np.ones((3, 1)), rows=0), (ValueError, "rows must be .*found 0")),
    ("a function that is none", lambda: sp.FunctionOperator(3, dimension=2), (TypeError, "function must be callable")),
    (
        "shapes that differ",
        lambda: sp.as_operator(np.eye(2)) + sp.as_operator(np.eye(3)),
        (ValueError, "one shape, found"),
    ),
    ("an estimate's key", lambda: plan().estimate(A, 3), (TypeError, "key must be .*found 3")),
    ("an estimate of a word", lambda: plan().estimate("A", KEY), (TypeError, "A must be .*found str")),
]

CASES = [("logdet", *case) for case in LOGDET]
for room, cases in (("options", OPTIONS), ("sums", SUMS), ("parts", PARTS)):
    CASES += [(room, *case) for case in cases]


@pytest.mark.parametrize(("call", "expected"), [case[2:] for case in CASES], ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_a_clear_error_or_a_right_answer(call, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of NumPy, for every np.matrix
        if isinstance(expected, tuple):
            with pytest.raises(expected[0], match=expected[1]):
                call()
            return
        found = call()
    assert abs(float(found.value) - expected) <= 6 * float(found.standard_error) + 1e-12 * abs(expected)


@pytest.mark.slow
def test_in_float32_the_same_table_is_right_too():
    """Everything above that is NumPy's is computed in float64 all the same."""
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        for _, name, call, expected in CASES:
            if not isinstance(expected, tuple):
                found = call()
                close = 6 * float(found.standard_error) + 1e-6 * max(1.0, abs(expected))
                assert abs(float(found.value) - expected) <= close, name
    assert thalweg.logdet is sp.logdet

"""Linear algebra that every system needs, written once for host and device."""

from thalweg.linalg.arrays import namespace
from thalweg.linalg.cg import CGResult, conjugate_gradients, joint_inner
from thalweg.linalg.factor import Factor, NotPositiveDefinite, factorise
from thalweg.linalg.lanczos import log_quadrature
from thalweg.linalg.lowrank import LowRank, low_rank, nystrom_features, pivoted_cholesky

__all__ = [
    "CGResult",
    "Factor",
    "LowRank",
    "NotPositiveDefinite",
    "conjugate_gradients",
    "factorise",
    "joint_inner",
    "log_quadrature",
    "low_rank",
    "namespace",
    "nystrom_features",
    "pivoted_cholesky",
]

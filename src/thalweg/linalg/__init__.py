"""Linear algebra that every system needs, written once for host and device."""

from thalweg.linalg.arrays import namespace
from thalweg.linalg.cg import CGResult, conjugate_gradients, joint_inner
from thalweg.linalg.factor import Factor, NotPositiveDefinite, factorise
from thalweg.linalg.lowrank import LowRank, low_rank, nystrom_features

__all__ = [
    "CGResult",
    "Factor",
    "LowRank",
    "NotPositiveDefinite",
    "conjugate_gradients",
    "factorise",
    "joint_inner",
    "low_rank",
    "namespace",
    "nystrom_features",
]

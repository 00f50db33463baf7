"""Linear algebra that every system needs, written once for host and device."""

from thalweg.linalg.arrays import namespace
from thalweg.linalg.cg import CGResult, conjugate_gradients, joint_inner, traced_conjugate_gradients
from thalweg.linalg.factor import Factor, NotPositiveDefinite, factorise
from thalweg.linalg.fold import Tile, fold_tiles
from thalweg.linalg.lanczos import log_quadrature
from thalweg.linalg.lowrank import LowRank, low_rank, nystrom_features, pivoted_cholesky

__all__ = [
    "CGResult",
    "Factor",
    "LowRank",
    "NotPositiveDefinite",
    "Tile",
    "conjugate_gradients",
    "factorise",
    "fold_tiles",
    "joint_inner",
    "log_quadrature",
    "low_rank",
    "namespace",
    "nystrom_features",
    "pivoted_cholesky",
    "traced_conjugate_gradients",
]

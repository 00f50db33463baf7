"""Terms h: functions with a proximal step in closed form.

===================================================  =======================================================
norms and smooth terms                               :class:`L1`, :class:`L2`, :class:`SquaredL2`,
                                                     :class:`ElasticNet`, :class:`GroupLasso`,
                                                     :class:`Huber`, :class:`LogBarrier`,
                                                     :class:`TotalVariation1D`
sets (the prox is the projection)                    :class:`Box`, :class:`NonNegative`, :class:`Simplex`,
                                                     :class:`L1Ball`, :class:`L2Ball`, :class:`LInfBall`,
                                                     :class:`HalfSpace`, :class:`Affine`
matrices                                             :class:`PSDCone`, :class:`SpectralBox`,
                                                     :class:`NuclearNorm`, :class:`Rank` (not convex)
combinators                                          :class:`Translated`, :class:`Scaled`, :class:`Dilated`,
                                                     :class:`Within`, :class:`PerLeaf`
nothing                                              :class:`Zero`
===================================================  =======================================================
"""

from thalweg.descent.terms.balls import L1Ball, L2Ball, Simplex
from thalweg.descent.terms.base import Scaled, Term, Zero
from thalweg.descent.terms.boxes import Bounds, Box, LInfBall, NonNegative, Within
from thalweg.descent.terms.combinators import Dilated, Translated
from thalweg.descent.terms.flats import Affine, HalfSpace
from thalweg.descent.terms.groups import GroupLasso
from thalweg.descent.terms.indicator import Indicator
from thalweg.descent.terms.matrices import NuclearNorm, PSDCone, Rank, SpectralBox
from thalweg.descent.terms.norms import L1, L2, ElasticNet, SquaredL2
from thalweg.descent.terms.per_leaf import PerLeaf
from thalweg.descent.terms.smooth import Huber, LogBarrier
from thalweg.descent.terms.total_variation import TotalVariation1D

__all__ = [
    "L1",
    "L2",
    "Affine",
    "Bounds",
    "Box",
    "Dilated",
    "ElasticNet",
    "GroupLasso",
    "HalfSpace",
    "Huber",
    "Indicator",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "LogBarrier",
    "NonNegative",
    "NuclearNorm",
    "PSDCone",
    "PerLeaf",
    "Rank",
    "Scaled",
    "Simplex",
    "SpectralBox",
    "SquaredL2",
    "Term",
    "TotalVariation1D",
    "Translated",
    "Within",
    "Zero",
]

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

from thalweg.descent.terms.base import *
from thalweg.descent.terms.boxes import *
from thalweg.descent.terms.combinators import *
from thalweg.descent.terms.matrices import *
from thalweg.descent.terms.norms import *
from thalweg.descent.terms.sets import *
from thalweg.descent.terms.total_variation import *

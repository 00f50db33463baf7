"""The iteration x⁺ = argmin ⟨ĝ,x⟩ + h(x) + D(x‖x_k)/β, its parts, and the loop that runs it."""

from thalweg.descent.averaging import *
from thalweg.descent.checkpoint import *
from thalweg.descent.divergences import *
from thalweg.descent.interop import *
from thalweg.descent.iteration import *
from thalweg.descent.loop import *
from thalweg.descent.momentum import *
from thalweg.descent.plateau import *
from thalweg.descent.result import *
from thalweg.descent.searches import *
from thalweg.descent.steps import *
from thalweg.descent.stopping import *
from thalweg.descent.terms import *

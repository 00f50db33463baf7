"""Linear algebra that every system needs, written once for host and device."""

from thalweg.linalg.arrays import *
from thalweg.linalg.cg import *
from thalweg.linalg.factor import *
from thalweg.linalg.fold import *
from thalweg.linalg.lanczos import *
from thalweg.linalg.leave_one_out import *
from thalweg.linalg.nystrom import *

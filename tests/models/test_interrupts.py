"""Ctrl-C in a fit, and in a loop over fits of scikit-learn."""

import pytest
from sklearn.base import clone

from thalweg import GaussianGLM
from thalweg.models._common import unharmed
from thalweg.runs import Run


def interrupted(model):
    """A fit that has reached something when Ctrl-C comes."""
    with unharmed(model), Run("steps") as run:
        run.keep("reached")
        raise KeyboardInterrupt
    return run.kept


def test_a_fit_keeps_what_it_has_reached():
    with pytest.warns(UserWarning, match="interrupted"):
        assert interrupted(GaussianGLM()) == "reached"


def test_a_fit_of_a_clone_raises_it_since_it_ends_all_fits_of_the_loop():
    with pytest.raises(KeyboardInterrupt):
        interrupted(clone(GaussianGLM()))

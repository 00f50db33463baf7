"""Thalweg: descent with cheap unbiased gradients and steps that respect the geometry of the parameters.

The names people type most are here; the rest is in the rooms: ``thalweg.descent`` (the iteration and its parts),
``thalweg.oracles`` (gradients), ``thalweg.spectral`` (tr f(A) and its gradient), ``thalweg.kernels``,
``thalweg.gaussian`` (Gaussian posteriors), ``thalweg.processes`` (Gaussian processes), ``thalweg.machines`` (kernel
machines), ``thalweg.completion`` (matrices of ratings), ``thalweg.models`` (estimators), ``thalweg.data``,
``thalweg.files``.

A room is loaded when a name of it is first used. The names are listed in ``__init__.pyi``, where type checkers and
editors find them too.
"""

import lazy_loader

__version__ = "0.1.0.dev0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

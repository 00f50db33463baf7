"""Estimators: scikit-learn's contract on top of the parts.

Each is loaded with its room when it is first used. The names are listed in ``__init__.pyi``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

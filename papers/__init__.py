"""The figures and tables of the papers that Thalweg's methods are from: one file each, run as ``python -m papers``.

This package is not part of the library: it is run from a clone of the repository. Files without a leading underscore
hold a figure or a table, those with one what several of them share.
"""

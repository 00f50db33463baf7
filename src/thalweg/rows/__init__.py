"""Rows: examples as every system reads them, their robust scales, their duplicates and their order."""

from thalweg.rows.scale import FeatureFrame, fit_frame, median_and_spread
from thalweg.rows.split import Duplicates, duplicates_are_copies, find_duplicates, random_order
from thalweg.rows.table import Batch, Table, as_dense, predicted_labels

__all__ = [
    "Batch",
    "Duplicates",
    "FeatureFrame",
    "Table",
    "as_dense",
    "duplicates_are_copies",
    "find_duplicates",
    "fit_frame",
    "median_and_spread",
    "predicted_labels",
    "random_order",
]

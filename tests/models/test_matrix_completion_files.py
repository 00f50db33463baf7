"""Files of a completed matrix that were changed: each is refused in words before anything is computed."""

from dataclasses import replace

import numpy as np
import pytest

import thalweg
from thalweg import MatrixCompletion, files
from thalweg.errors import FileFormatError

ROW, COLUMN = np.divmod(np.arange(60), 6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    X, y = np.column_stack([ROW, COLUMN]), np.sin(ROW) * np.cos(COLUMN)
    MatrixCompletion(2, tol=1.0, random_state=0).fit(X, y).save(path)
    return path


def ratings(**change):
    def changed(model):
        parts = {name: part(getattr(model.ratings, name)) for name, part in change.items()}
        return replace(model, ratings=model.ratings._replace(**parts))

    return changed


HOSTILE = {
    "a row that there is not": ratings(rows=lambda rows: rows + 1),
    "a row before the first": ratings(rows=lambda rows: rows - 1),
    "half a row": ratings(rows=lambda rows: rows + 0.5),
    "a column that there is not": ratings(columns=lambda columns: columns + 1),
    "a column before the first": ratings(columns=lambda columns: columns - 1),
    "half a column": ratings(columns=lambda columns: columns + 0.5),
    "fewer ratings than rows": ratings(values=lambda values: values[1:]),
    "more weights than ratings": ratings(weights=lambda _: np.ones(61)),
    "a rating that is none": ratings(values=lambda values: values * np.nan),
    "more columns": ratings(shape=lambda shape: (shape[0], shape[1] + 1)),
    "fewer rows": ratings(shape=lambda shape: (shape[0] - 1, shape[1])),
    "selection effects of other rows": lambda model: replace(model, rows=replace(model.rows, selection=np.zeros(3))),
    "side information of other columns": lambda model: replace(
        model, columns=replace(model.columns, information=model.columns.information[1:])
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_changed_file_is_refused(saved, tmp_path, case):
    tree, metadata, kind = files.read(saved)
    tree["fitted"]["_model"] = HOSTILE[case](tree["fitted"]["_model"])
    files.save(tmp_path / "changed", tree, metadata, kind=kind)
    with pytest.raises(FileFormatError, match="changed"):
        thalweg.load(tmp_path / "changed")


def test_the_file_itself_is_read(saved):
    assert np.isfinite(thalweg.load(saved).predict([[0, 0]])).all()

"""ALS of the library implicit: run by completion_implicit with a Python that has it.

Arguments: a file with the training cells, and factors, the weight of what was done and the ridge; without these, those
with the best NDCG@10 on a tenth of the cells are found. Prints JSON: seconds (wall and processor) of the last fit and
of the tuning; the scores of all cells are written beside the file.
"""

import itertools
import json
import sys
import time

import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.evaluation import ndcg_at_k
from scipy.sparse import csr_matrix

FACTORS, WEIGHTS, RIDGES = (16, 32, 64), (1.0, 3.0, 10.0), (0.1, 3.0, 10.0, 30.0)


def matrix(cells, shape):
    return csr_matrix((np.ones(len(cells), np.float32), tuple(cells.T)), shape)


def fitted(cells, factors, weight, ridge):
    model = AlternatingLeastSquares(factors=factors, alpha=weight, regularization=ridge, random_state=0)
    model.fit(cells, show_progress=False)
    return model


def clock():
    return np.array([time.perf_counter(), time.process_time()])


def main(path, *tuned):
    train = np.load(path)["train"]
    shape = tuple(train.max(axis=0) + 1)
    aside = np.random.default_rng(0).random(len(train)) < 0.1
    some, rest = matrix(train[~aside], shape), matrix(train[aside], shape)
    began = clock()
    if tuned:
        best = int(tuned[0]), float(tuned[1]), float(tuned[2])
    else:
        quality = {
            setting: ndcg_at_k(fitted(some, *setting), some, rest, K=10, show_progress=False)
            for setting in itertools.product(FACTORS, WEIGHTS, RIDGES)
        }
        best = max(quality, key=quality.get)
    ready = clock()
    model = fitted(matrix(train, shape), *best)
    tuning, last = ready - began, clock() - ready
    np.save(f"{path}.scores.npy", np.asarray(model.user_factors) @ np.asarray(model.item_factors).T)
    found = {"seconds": last[0], "processor": last[1], "seconds of tuning": tuning[0], "processor of tuning": tuning[1]}
    print(json.dumps({**found, "factors": best[0], "weight": best[1], "ridge": best[2]}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Peers of MatrixCompletion: run by completion_ml1m and completion_implicit with a Python that has them.

Arguments: the peer, and a file of arrays: row, column, rating, and test_row, test_column of cells to predict. Prints
JSON: seconds (wall and processor) of the fit, imports excluded; predictions are written beside the file.
"""

import json
import sys
import time

import numpy as np


def surprise_svd(data, epochs, ridge):
    import pandas
    from surprise import SVD, Dataset, Reader

    frame = pandas.DataFrame({"u": data["row"], "i": data["column"], "r": data["rating"].astype(float)})
    train = Dataset.load_from_df(frame, Reader(rating_scale=(1, 5))).build_full_trainset()
    model = SVD(n_epochs=epochs, reg_all=ridge, random_state=0)
    clock = started()
    model.fit(train)
    seconds = stopped(clock)
    tests = zip(data["test_row"], data["test_column"], strict=True)
    return np.array([model.predict(u, i).est for u, i in tests]), seconds


def myfm_gibbs(data, rank, sweeps):
    import myfm
    from scipy.sparse import csr_matrix

    rows, columns = int(data["row"].max()) + 1, int(data["column"].max()) + 1

    def design(row, column):
        count = len(row)
        places = np.column_stack([row, rows + column.astype(int)]).ravel()
        return csr_matrix((np.ones(2 * count), places, np.arange(0, 2 * count + 1, 2)), (count, rows + columns))

    X, test = design(data["row"], data["column"]), design(data["test_row"], data["test_column"])
    model = myfm.MyFMRegressor(rank=rank, random_seed=0)
    groups = [0] * rows + [1] * columns
    clock = started()
    model.fit(
        X, data["rating"].astype(float), n_iter=sweeps, n_kept_samples=sweeps - 10, group_shapes=None, grouping=groups
    )
    seconds = stopped(clock)
    return np.clip(model.predict(test), 1, 5), seconds


def started():
    return time.perf_counter(), time.process_time()


def stopped(clock):
    return {"seconds": time.perf_counter() - clock[0], "processor": time.process_time() - clock[1]}


PEERS = {
    "surprise": lambda data: surprise_svd(data, 20, 0.02),
    "surprise-tuned": lambda data: surprise_svd(data, 40, 0.06),
    "myfm": lambda data: myfm_gibbs(data, 10, 100),
}


def main(peer, path):
    found, seconds = PEERS[peer](np.load(path))
    np.save(f"{path}.{peer}.npy", found)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])

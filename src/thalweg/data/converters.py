"""From the files that data sets are published as to our arrays.

Each function takes the paths of the downloaded files, in the order of the catalogue, and returns the arrays.
None runs code from a file: no pickle, no object arrays.
"""

import gzip
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh
from sklearn.datasets import load_svmlight_file

from thalweg.data.catalogue import Arrays

Paths = Sequence[Path]


def train_and_test_tables(paths: Paths) -> Arrays:
    """Two tables of comma-separated numbers, training and test part, the label ±1 in the last column."""
    parts = [np.loadtxt(path, delimiter=",", ndmin=2) for path in paths]
    table = np.vstack(parts)
    is_train = np.arange(len(table)) < len(parts[0])
    return {"X": table[:, :-1].astype(np.float32), "y": table[:, -1].astype(np.int8), "is_train": is_train}


def regression_with_masks(paths: Paths) -> Arrays:
    """A table of comma-separated numbers, target last, and a table of 0/1 whose columns are test parts."""
    table, mask = (np.loadtxt(path, delimiter=",", ndmin=2) for path in paths)
    X, y = table[:, :-1].astype(np.float32), table[:, -1].astype(np.float32)
    return {"X": X, "y": y, "test_mask": mask.astype(bool)}


def binary_libsvm(paths: Paths, features: int) -> Arrays:
    """LIBSVM files with 0/1 features and labels ±1: one file, or a training and a test file."""
    parts = [load_svmlight_file(str(path), n_features=features) for path in paths]
    names = [("X", "y")] if len(parts) == 1 else [("X_train", "y_train"), ("X_test", "y_test")]
    arrays: Arrays = {}
    for (X_name, y_name), (X, y) in zip(names, parts, strict=True):
        arrays |= {X_name: X.toarray().astype(np.uint8), y_name: y.astype(np.int8)}
    return arrays


def usps(paths: Paths) -> Arrays:
    """LIBSVM's USPS, training and test file: its labels 1 to 10 are the digits 0 to 9."""
    (X, y), (X_test, y_test) = (load_svmlight_file(str(path), n_features=256) for path in paths)
    pixels = [np.round(part.toarray(), 3).astype(np.float32) for part in (X, X_test)]
    digits = [(labels - 1).astype(np.uint8) for labels in (y, y_test)]
    return {"X_train": pixels[0], "y_train": digits[0], "X_test": pixels[1], "y_test": digits[1]}


def usps_3v5(paths: Paths) -> Arrays:
    """The threes (+1) and fives (-1) of USPS, with its own split and a random one of 767 for training."""
    both = usps(paths)
    digit = np.concatenate([both["y_train"], both["y_test"]])
    chosen = (digit == 3) | (digit == 5)
    is_train = np.arange(digit.size) < both["y_train"].size
    shuffled = np.random.default_rng(0).permutation(np.count_nonzero(chosen))
    return {
        "X": np.vstack([both["X_train"], both["X_test"]])[chosen],
        "y": np.where(digit[chosen] == 3, 1, -1).astype(np.int8),
        "digit": digit[chosen],
        "is_train_original": is_train[chosen],
        "is_train_767": np.argsort(shuffled) < 767,
    }


def covtype(paths: Paths, feature_names: Sequence[str]) -> Arrays:
    """UCI's gzipped table of 54 integers and the label, 1 to 7."""
    table = np.loadtxt(paths[0], delimiter=",", dtype=np.int16, ndmin=2)
    y = table[:, -1].astype(np.uint8)
    return {"X": np.ascontiguousarray(table[:, :-1]), "y": y, "feature_names": np.array(feature_names)}


def skin(paths: Paths) -> Arrays:
    """UCI's table of B, G, R and the label: 1 is skin (+1), 2 is not (-1)."""
    table = np.loadtxt(paths[0], dtype=np.uint8, ndmin=2)
    return {"X": table[:, :3].copy(), "y": np.where(table[:, 3] == 1, 1, -1).astype(np.int8)}


def uci_bag_of_words(paths: Paths, more_than: int) -> Arrays:
    """UCI's ``docword`` (three lines of sizes, then document, word, count, from 1) and ``vocab``.

    Words that occur ``more_than`` times in all are kept.
    """
    with gzip.open(paths[0], "rt") as file:
        documents, words, _ = (int(next(file)) for _ in range(3))
        document, word, count = np.loadtxt(file, dtype=np.int64, ndmin=2).T
    vocabulary = np.array(paths[1].read_text(encoding="utf-8").split())
    kept = np.bincount(word - 1, weights=count, minlength=words) > more_than
    table = csr_array((count, (document - 1, word - 1)), shape=(documents, words))[:, np.flatnonzero(kept)]
    table.sort_indices()
    return _bags_of_words(table.indptr, table.indices, table.data.astype(np.uint16), vocabulary[kept])


def lda_c(paths: Paths) -> Arrays:
    """The archive of lda-c's example: a line ``length word:count …`` a document, and the vocabulary."""
    with tarfile.open(paths[0]) as archive:
        lines = _member(archive, "ap/ap.dat").decode().splitlines()
        vocabulary = np.array(_member(archive, "ap/vocab.txt").decode().split())
    pairs = [[pair.split(":") for pair in line.split()[1:]] for line in lines]
    flat = np.array([pair for document in pairs for pair in document], dtype=np.int64).reshape(-1, 2)
    return _bags_of_words(np.cumsum([0, *map(len, pairs)]), flat[:, 0], flat[:, 1].astype(np.uint8), vocabulary)


def movielens_1m(paths: Paths) -> Arrays:
    """GroupLens's archive of ``::``-separated ratings, movies and users, in Latin-1."""
    with zipfile.ZipFile(paths[0]) as archive:
        ratings, movies, users = (
            [line.split("::") for line in archive.read(f"ml-1m/{part}.dat").decode("latin-1").splitlines()]
            for part in ("ratings", "movies", "users")
        )
    triples = np.array([row[:3] for row in ratings], dtype=np.int64)
    triples = triples[np.lexsort((triples[:, 1], triples[:, 0]))]
    return {
        "user": triples[:, 0].astype(np.uint16),
        "movie": triples[:, 1].astype(np.uint16),
        "rating": triples[:, 2].astype(np.uint8),
        "movie_id": np.array([row[0] for row in movies]).astype(np.uint16),
        "movie_title": np.array([row[1] for row in movies]),
        "movie_genres": np.array([row[2] for row in movies]),
        "user_gender": np.array([row[1] for row in users]),
        "user_age": np.array([row[2] for row in users]).astype(np.uint8),
        "user_occupation": np.array([row[3] for row in users]).astype(np.uint8),
    }


def mnist(paths: Paths) -> Arrays:
    """Four gzipped IDX files: training images and labels, test images and labels."""
    names = ("X_train", "y_train", "X_test", "y_test")
    return {name: _idx(gzip.decompress(path.read_bytes())) for name, path in zip(names, paths, strict=True)}


def cifar10_pca(paths: Paths, components: int) -> Arrays:
    """CIFAR-10's binary archive, projected on the principal components of the training images.

    The sign of a component is arbitrary; here its largest entry is positive.
    """
    with tarfile.open(paths[0]) as archive:
        batches = [_cifar_batch(archive, f"data_batch_{i}.bin") for i in range(1, 6)]
        X_test, y_test = _cifar_batch(archive, "test_batch.bin")
    X, y = np.concatenate([X for X, _ in batches]), np.concatenate([y for _, y in batches])
    mean = X.mean(0, dtype=np.float64)
    covariance = X.T.astype(np.float64) @ X / len(X) - np.outer(mean, mean)
    variances, vectors = eigsh(covariance, k=components, v0=np.ones(len(mean)))
    basis = vectors[:, ::-1]
    basis = basis * np.sign(basis[np.abs(basis).argmax(0), np.arange(components)])
    return {
        "Z_train": ((X - mean) @ basis).astype(np.float16),
        "y_train": y,
        "Z_test": ((X_test - mean) @ basis).astype(np.float16),
        "y_test": y_test,
        "mean": mean.astype(np.float32),
        "basis": basis.astype(np.float32),
        "explained_variance": variances[::-1].astype(np.float32),
        "total_variance": np.trace(covariance)[None],
    }


def chicago_assault(paths: Paths) -> Arrays:
    """The MATLAB file's table of positions and days."""
    return {"xyt": scipy.io.loadmat(paths[0], variable_names=["crime"])["crime"].astype(np.float32)}


def sound(paths: Paths) -> Arrays:
    """The MATLAB file's waveform and the points held out of it."""
    found = scipy.io.loadmat(paths[0], variable_names=["xfull", "yfull", "xtest"])
    x = found["xfull"].ravel().astype(np.float32)
    y = found["yfull"].ravel().astype(np.float32)
    return {"x": x, "y": y, "is_test": np.isin(x, found["xtest"])}


def precipitation(paths: Paths) -> Arrays:
    """A table with a header, in which the names of latitude and longitude are swapped."""
    table = np.loadtxt(paths[0], delimiter=",", skiprows=1, ndmin=2)
    return {
        "station": table[:, 0].astype(np.int32),
        "longitude": table[:, 4].astype(np.float32),
        "latitude": table[:, 5].astype(np.float32),
        "day": table[:, 3].astype(np.uint8),
        "precipitation": table[:, 7].astype(np.int16),
    }


def _bags_of_words(indptr: np.ndarray, indices: np.ndarray, counts: np.ndarray, vocabulary: np.ndarray) -> Arrays:
    indptr, indices = indptr.astype(np.int32), indices.astype(np.uint16)
    return {"indptr": indptr, "indices": indices, "counts": counts, "vocab": vocabulary}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file of the archive")
    return file.read()


def _idx(data: bytes) -> np.ndarray:
    """Two zero bytes, the type (8: unsigned bytes), the number of sides, the sides in big-endian, data."""
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"not an IDX file of bytes: it begins with {data[:3]!r}")
    sides = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sides).copy()


def _cifar_batch(archive: tarfile.TarFile, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label and 3 x 32 x 32 bytes; pixels come back in [0, 1], channel last."""
    records = np.frombuffer(_member(archive, f"cifar-10-batches-bin/{name}"), np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).reshape(-1, 3072)
    return images.astype(np.float32) / np.float32(255), records[:, 0].copy()

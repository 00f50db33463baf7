"""Coverage of the 95 % intervals of CorrelatedTopicModel.effects(), topics learned from the same documents.

Every data set has topics, effects and Σ of its own: five topics over 300 words from a Dirichlet of concentration 0.1,
z with correlations that fall from 0.6 with the topics' distance, one covariate that is normal and one that is 0 or 1,
effects of standard deviation 0.5. Found topics are matched with those drawn by their cosines. ``slope`` is that of
found on true effects, 1 where they are of the right size. Settings are done in turns, so that a run that is cut by
``--seconds`` has as many data sets of each. ``found`` is the part of the data sets in which every topic has a cosine
above 0.7: of short documents, a rare topic cannot always be learned. ``warned`` is the part in which effects() warns
that its chain moved too slowly, and ``unwarned`` the coverage in the others.

    python -m benchmarks.topics_effects [--runs 200] [--workers 14] [--seconds 440] [--settings 300x100 1000x30]
"""

import argparse
import os
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import Queue, get_context

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from benchmarks._common import report, table

TOPICS, WORDS = 5, 300
SETTINGS = ("300x30", "300x100", "1000x30", "1000x100", "3000x30", "3000x100")
FOUND = 0.7


def drawn(seed, documents, length):
    """Counts, covariates, topics and effects of one data set."""
    rng = np.random.default_rng([seed, documents, length])
    topics = rng.dirichlet(np.full(WORDS, 0.1), size=TOPICS)
    effects = 0.5 * rng.normal(size=(2, TOPICS))
    effects -= effects.mean(axis=1, keepdims=True)
    covariates = np.column_stack([rng.normal(size=documents), rng.integers(2, size=documents)])
    near = 0.6 ** np.abs(np.subtract.outer(np.arange(TOPICS), np.arange(TOPICS)))
    noise = rng.normal(size=(documents, TOPICS)) @ np.linalg.cholesky(near).T
    z = 0.5 * rng.normal(size=TOPICS) + covariates @ effects + noise
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    counts = [
        rng.multinomial(n, p / p.sum()) for n, p in zip(rng.poisson(length, documents), shares @ topics, strict=True)
    ]
    return csr_array(np.array(counts)), covariates, topics, effects


def one_core(cores):
    """Keep a worker to a core of its own, so that compiled programs do not wait for one another."""
    core = cores.get()
    if core is not None:
        os.sched_setaffinity(0, {core})


def figures(setting, seed):
    """The part of intervals that cover, slope, width, smallest cosine, the draws' worth, a warning, CPU seconds."""
    from thalweg import CorrelatedTopicModel

    X, covariates, topics, effects = drawn(seed, *map(int, setting.split("x")))
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CorrelatedTopicModel(TOPICS, random_state=seed).fit(X, covariates=covariates)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = model.effects()
    seconds, worth = time.process_time() - began, model._effects.worth
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(topics) @ unit(model.components_).T
    rows, order = linear_sum_assignment(-cosines)
    means, low, high = (part.reshape(TOPICS, 2)[order].T for part in (found.means, *found.interval.T))
    covered = float(np.mean((low <= effects) & (effects <= high)))
    slope = float(np.sum(means * effects) / np.sum(effects**2))
    width = float(np.mean(high - low))
    return setting, covered, slope, width, float(cosines[rows, order].min()), worth, float(bool(said)), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=np.inf)
    options = parser.parse_args()
    began, rows = time.perf_counter(), defaultdict(list)
    context = get_context("spawn")
    cores: Queue = context.Queue()
    mine = sorted(os.sched_getaffinity(0))
    for worker in range(options.workers):
        cores.put(mine[worker] if len(mine) >= options.workers else None)
    with ProcessPoolExecutor(options.workers, context, initializer=one_core, initargs=(cores,)) as pool:
        asked = [pool.submit(figures, s, seed) for seed in range(options.runs) for s in options.settings]
        for answer in as_completed(asked):
            if not answer.cancelled():
                setting, *found = answer.result()
                rows[setting].append(found)
                print(setting, *(f"{number:.3f}" for number in found), flush=True)
            if time.perf_counter() - began > options.seconds:
                for later in asked:
                    later.cancel()
    names = ("coverage", "slope", "width", "cosine", "worth", "warned", "CPU s")
    columns = {"setting": list(options.settings), "runs": [len(rows[s]) for s in options.settings]}
    for index, name in enumerate(names):
        columns[name] = [float(np.mean([row[index] for row in rows[s]])) for s in options.settings]
    spread = [float(np.std([row[0] for row in rows[s]]) / np.sqrt(len(rows[s]))) for s in options.settings]
    columns["± coverage"] = spread
    columns["found"] = [float(np.mean([row[3] > FOUND for row in rows[s]])) for s in options.settings]
    columns["unwarned"] = [float(np.mean([row[0] for row in rows[s] if not row[5]])) for s in options.settings]
    table(columns)
    cover = dict(zip(options.settings, columns["coverage"], strict=True))
    report(
        f"effects' 95 % intervals cover 93-97 % with topics learned, documents x words {', '.join(options.settings)}",
        cover,
        all(0.93 <= part <= 0.97 for part in cover.values()),
        **columns,
    )


if __name__ == "__main__":
    main()

"""Correlated topics of news or papers: how well held-out halves of documents are predicted, and in what time.

Half of the documents are learned from. All libraries' topics and priors are scored by one function,
``thalweg.topics.document_completion``, on the same halves of the same other documents. The claim, on AP: −8.10 nats a
word or better with 10 topics and −8.05 with 20, means over seeds, each fit within 20 seconds with compiling; and
topics of 20 seeds have a mean cosine of 0.95 or more.

    python -m benchmarks.topics_ap [--data ap nips_f20] [--topics 10 20 5 50] [--seeds 5] [--workers 7] [--seconds 500]
    python -m benchmarks.topics_ap --peers path/to/python --seeds 1 --cosine-seeds 0

scikit-learn's LDA is run beside ours. The peers' environment has topica, tomotopy and NumPy; ``--merge`` takes their
rows from an earlier file, if it is there, and ``run`` tells which those are. Every fit has a process of its own, so
that it compiles, and two cores, where there are two for every worker. tomotopy's time grows fast with topics: peers
have ``--limit`` seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from queue import Queue

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from benchmarks._common import RESULTS, report, table

AIMS = {10: -8.10, 20: -8.05}
SECONDS, COSINE = 20.0, 0.95
UNSMOOTHED, SMOOTHING = ("topica", "tomotopy"), 0.2
"""Libraries that give no probability to words that occur in no document learned from, and what they are given here."""
COLUMNS = ("data", "library", "topics", "seed", "score", "standard error", "wall", "cpu", "run")


def halves(name):
    """The documents of a data set in two halves, drawn with a fixed seed."""
    from thalweg import data

    found = data.load(name)
    shape = (len(found.indptr) - 1, len(found.vocab))
    counts = csr_array((found.counts.astype(np.float32), found.indices.astype(np.int32), found.indptr), shape=shape)
    order = np.random.default_rng(0).permutation(shape[0])
    return counts[np.sort(order[: shape[0] // 2])], counts[np.sort(order[shape[0] // 2 :])]


def ours(train, topics, seed):
    """Topics and prior, by this library."""
    from thalweg import CorrelatedTopicModel
    from thalweg.topics import LogisticNormal

    model = CorrelatedTopicModel(topics, random_state=seed).fit(train)
    return model.components_, LogisticNormal(model.mean_, model.covariance_)


def lda(train, topics, seed):
    """Topics and prior, by scikit-learn's latent Dirichlet allocation."""
    from sklearn.decomposition import LatentDirichletAllocation

    from thalweg.topics import Dirichlet

    model = LatentDirichletAllocation(topics, max_iter=30, random_state=seed).fit(train)
    components = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return components, Dirichlet(np.full(topics, model.doc_topic_prior_))


def theirs(train, topics, library, peers, limit):
    """Topics and prior, by a library of another environment, with its own seconds; nothing if it takes too long."""
    from thalweg.topics import LogisticNormal

    script = str(Path(__file__).parent / "_topics_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/train.npz", f"{folder}/found.npz"
        counts = train.data.astype(int)
        np.savez(source, indptr=train.indptr, indices=train.indices, counts=counts, words=train.shape[1])
        command = [peers, script, source, target, library, str(topics), "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
        found = np.load(target)
        components = found["components"] + SMOOTHING * topics / train.sum()
        components /= components.sum(axis=1, keepdims=True)
        seconds = json.loads(done.stdout.strip().splitlines()[-1])
        return components, LogisticNormal(found["mean"], found["covariance"]), (seconds["wall"], seconds["cpu"])


def one(options):
    """One fit in this process, and its score; prints a line of JSON, and writes topics to ``--target``."""
    from thalweg.topics import document_completion

    data, library, topics, seed = options.one
    train, test = halves(data)
    began, seconds = (time.perf_counter(), time.process_time()), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library in UNSMOOTHED:
            components, prior, seconds = theirs(train, int(topics), library, options.peers, options.limit)
        else:
            components, prior = {"thalweg": ours, "scikit-learn LDA": lda}[library](train, int(topics), int(seed))
    seconds = seconds or (time.perf_counter() - began[0], time.process_time() - began[1])
    np.save(options.target, components)
    score = (np.nan, np.nan)
    if not options.unscored:
        found = document_completion(test, components, prior, random_state=0)
        score = found.score, found.standard_error
    print(json.dumps([data, library, int(topics), int(seed), *score, *seconds, "this"]))


def likeness(one, other):
    """Mean cosine of topics matched one to one."""
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(one) @ unit(other).T
    return float(np.mean(cosines[linear_sum_assignment(-cosines)]))


def run(job, cores, options, folder):
    """A fit in a process of its own, on some cores: its row, or nothing if it failed."""
    target = f"{folder}/{'-'.join(job).replace(' ', '')}.npy"
    extra = ["--peers", options.peers, "--limit", str(options.limit)] if options.peers else []
    unscored = ["--unscored"] if int(job[3]) >= max(options.seeds, 1) else []
    command = [sys.executable, "-m", "benchmarks.topics_ap", "--one", *job, "--target", target, *extra, *unscored]
    here = cores.get()
    if time.perf_counter() > options.ends:
        cores.put(here)
        return None
    pinned = (lambda: os.sched_setaffinity(0, here)) if here else None
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=pinned)
    cores.put(here)
    if done.returncode:
        print(*job, "failed:", done.stderr.strip().splitlines()[-1], file=sys.stderr, flush=True)
        return None
    row = json.loads(done.stdout.strip().splitlines()[-1])
    print(*row, flush=True)
    return row, target


def jobs(options):
    """Data, library, topics and seed of every fit, by data and in the order of ``--topics``; AP's further seeds."""
    for data in options.data:
        for topics in options.topics:
            for seed in range(options.seeds):
                yield data, "thalweg", str(topics), str(seed)
            for library in ["scikit-learn LDA", *(UNSMOOTHED if options.peers else ())]:
                yield data, library, str(topics), "0"
        for seed in range(options.seeds, options.cosine_seeds) if data == "ap" else ():
            yield data, "thalweg", "10", str(seed)


def merged(rows, file):
    """The rows, and those of other libraries in an earlier file that are not among them."""
    known = {tuple(row[:4]) for row in rows}
    fits = json.loads(Path(file).read_text())["details"]["fits"]
    earlier = [[*(fit[name] for name in COLUMNS[:-1]), "earlier"] for fit in fits]
    return rows + [row for row in earlier if row[1] != "thalweg" and tuple(row[:4]) not in known]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["ap"], choices=["ap", "nips_f20"])
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 20, 5, 50])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cosine-seeds", type=int, default=20, help="seeds whose topics are compared, AP, 10 topics")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--peers", help="a Python that has topica and tomotopy")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a fit of topica or tomotopy")
    parser.add_argument("--merge", default=str(RESULTS / "topics_ap_peers.json"), help="a file with rows of peers")
    parser.add_argument("--seconds", type=float, default=np.inf, help="when to begin no further fit")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--unscored", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    options.ends = time.perf_counter() + options.seconds
    mine, cores = sorted(os.sched_getaffinity(0)), Queue()
    for worker in range(options.workers):
        cores.put(set(mine[2 * worker : 2 * worker + 2]) if len(mine) >= 2 * options.workers else None)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        done = [found for found in pool.map(lambda job: run(job, cores, options, folder), jobs(options)) if found]
        alike = [np.load(file) for row, file in done if row[:3] == ["ap", "thalweg", 10]]
    rows = [row for row, _ in done if np.isfinite(row[4])]
    rows = merged(rows, options.merge) if Path(options.merge).exists() else rows
    cosine = np.mean([likeness(a, b) for a, b in combinations(alike, 2)]) if len(alike) > 1 else np.nan
    table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    of = lambda data, topics: [row for row in rows if row[:3] == [data, "thalweg", topics]]
    figures = {
        f"{data}, K = {topics}": float(np.mean([row[4] for row in of(data, topics)]))
        for data in options.data
        for topics in options.topics
        if of(data, topics)
    }
    slowest = max((row[6] for topics in AIMS for row in of("ap", topics)), default=np.nan)
    holds = all(figures.get(f"ap, K = {k}", -np.inf) >= aim for k, aim in AIMS.items())
    report(
        "AP: document completion of -8.10 (K = 10), -8.05 (K = 20) nats a word within 20 s a fit; seeds agree to 0.95",
        figures | {"slowest fit, K = 10 and 20": slowest, "cosine": cosine},
        holds and slowest <= SECONDS and cosine >= COSINE,
        seeds_compared=len(alike),
        fits=[dict(zip(COLUMNS, row, strict=True)) for row in sorted(rows)],
    )


if __name__ == "__main__":
    main()

"""Correlated topics of news or papers: how well held-out halves of documents are predicted, and in what time.

Half of the documents are learned from. All libraries' topics and priors are scored by one function,
``thalweg.topics.document_completion``, on the same halves of the same other documents. The claim, on AP: −8.10 nats a
word or better with 10 topics and −8.05 with 20, means of five seeds, each fit within 20 seconds with compiling; and
topics of 20 seeds have a mean cosine of 0.95 or more.

    python -m benchmarks.topics_ap --peers path/to/python [--data nips_f20] [--topics 5 10 20 50] [--seeds 5]

The peers' environment has topica, tomotopy and NumPy; scikit-learn's LDA is always run. Every fit of ours has a process
of its own, so that it compiles.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from benchmarks._common import report, table
from thalweg import CorrelatedTopicModel, data
from thalweg.topics import Dirichlet, LogisticNormal, document_completion

AIMS = {10: -8.10, 20: -8.05}
SECONDS, COSINE = 20.0, 0.95
UNSMOOTHED, SMOOTHING = ("topica", "tomotopy"), 0.2
"""Libraries that give no probability to words that occur in no document learned from, and what they are given here."""


def halves(name):
    """The documents of a data set in two halves, drawn with a fixed seed."""
    found = data.load(name)
    shape = (len(found.indptr) - 1, len(found.vocab))
    counts = csr_array((found.counts.astype(np.float32), found.indices.astype(np.int32), found.indptr), shape=shape)
    order = np.random.default_rng(0).permutation(shape[0])
    return counts[np.sort(order[: shape[0] // 2])], counts[np.sort(order[shape[0] // 2 :])]


def ours(name, topics, seed, target):
    """Fit in this process, and write what was found."""
    train, _ = halves(name)
    began = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CorrelatedTopicModel(topics, random_state=seed).fit(train)
    seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    np.savez(target, components=model.components_, mean=model.mean_, covariance=model.covariance_)
    print(json.dumps({"wall": seconds[0], "cpu": seconds[1], "passes": model.n_iter_}))


def lda(train, topics):
    from sklearn.decomposition import LatentDirichletAllocation

    began = time.perf_counter(), time.process_time()
    model = LatentDirichletAllocation(topics, max_iter=30, random_state=0).fit(train)
    seconds = {"wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}
    components = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return components, Dirichlet(np.full(topics, model.doc_topic_prior_)), seconds


def run(command, target):
    """What a process of its own found and how long it took; None if it failed."""
    done = subprocess.run([*command], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    found = np.load(target)
    prior = LogisticNormal(found["mean"], found["covariance"])
    return found["components"], prior, json.loads(done.stdout.strip().splitlines()[-1])


def likeness(one, other):
    """Mean cosine of topics matched one to one."""
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit(one) @ unit(other).T
    return float(np.mean(cosines[linear_sum_assignment(-cosines)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ap", choices=["ap", "nips_f20"])
    parser.add_argument("--topics", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cosine-seeds", type=int, default=20, help="seeds whose topics are compared, with 10 topics")
    parser.add_argument("--peers", help="a Python that has topica and tomotopy")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        ours(options.data, *options.one, options.target)
        return
    train, test = halves(options.data)
    rows, kept = [], {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/train.npz", f"{folder}/found.npz"
        counts = train.data.astype(int)
        np.savez(source, indptr=train.indptr, indices=train.indices, counts=counts, words=train.shape[1])

        def take(library, topics, seed, found):
            if found is None:
                return
            components, prior, seconds = found
            if library in UNSMOOTHED:
                components = components + SMOOTHING * topics / train.sum()
                components /= components.sum(axis=1, keepdims=True)
            score = document_completion(test, components, prior, random_state=0)
            rows.append([library, topics, seed, score.score, score.standard_error, seconds["wall"], seconds["cpu"]])
            print(*rows[-1], flush=True)

        for topics in options.topics:
            for seed in range(options.seeds):
                arguments = ["--data", options.data, "--one", str(topics), str(seed), "--target", target]
                found = run([sys.executable, "-m", "benchmarks.topics_ap", *arguments], target)
                kept.setdefault(topics, []).append(found[0])
                take("thalweg", topics, seed, found)
            take("scikit-learn LDA", topics, 0, lda(train, topics))
            for library in ["topica", "tomotopy"] if options.peers else []:
                script = str(Path(__file__).parent / "_topics_peer.py")
                take(
                    library, topics, 0, run([options.peers, script, source, target, library, str(topics), "0"], target)
                )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        more = [CorrelatedTopicModel(10, random_state=seed).fit(train) for seed in range(options.cosine_seeds)]
    cosine = np.mean([likeness(a.components_, b.components_) for a, b in combinations(more, 2)]) if more else np.nan
    names = ("library", "topics", "seed", "score", "standard error", "wall", "cpu")
    table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    mean = lambda topics: float(np.mean([r[3] for r in rows if r[0] == "thalweg" and r[1] == topics]))
    slowest = max((r[5] for r in rows if r[0] == "thalweg" and r[1] in AIMS), default=np.nan)
    figures = {f"K = {topics}": mean(topics) for topics in options.topics} | {
        "slowest fit, K = 10 and 20": slowest,
        "cosine": cosine,
    }
    aims = {k: aim for k, aim in AIMS.items() if k in options.topics and options.data == "ap"}
    holds = all(mean(k) >= aim for k, aim in aims.items()) and slowest <= SECONDS and cosine >= COSINE
    report(
        "AP: document completion of -8.10 (K = 10), -8.05 (K = 20) nats a word within 20 s a fit; seeds agree to 0.95",
        figures,
        holds,
        data=options.data,
        fits=[dict(zip(names, row, strict=True)) for row in rows],
    )


if __name__ == "__main__":
    main()

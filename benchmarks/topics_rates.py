"""Documents a CPU second with 100 topics, beside topica and tomotopy: how fast each reads them once.

Documents of 100 words, 20,000 in all, are those of ``benchmarks.topics_stream``. What is compared is one reading of
every document, with what is learned from it: a batch of ``partial_fit``, once topics have begun from 64 documents; an
epoch of topica's stochastic inference and of its EM; an iteration of tomotopy's Gibbs sampler. Of the peers it is the
difference of runs that read more and less often, from random starts. ``readings`` are those of a fit: a stream is read
once, topica's EM goes on until it converges, 500 times at most, and tomotopy needs some hundred. Rates are by the CPU
seconds of the process, which may use two cores, so that a busy machine changes them little.

    python -m benchmarks.topics_rates --peers path/to/python [--documents 512] [--limit 600]

The peers' environment has topica, tomotopy and NumPy.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks._common import report, table
from benchmarks.topics_stream import Stream
from thalweg import CorrelatedTopicModel

TOPICS, WORDS, FIRST = 100, 20_000, 64
WAYS = {"pgsvi": "thalweg, partial_fit", "pgsvi-mf": "thalweg, partial_fit, pgsvi-mf"}
READINGS = {"topica, svi": "1 or more", "topica, batch": "500 at most", "tomotopy": "200 or more"}


def ours(documents, inference):
    """CPU seconds of a batch of a stream that has begun, once compiled."""
    model = CorrelatedTopicModel(TOPICS, inference=inference, random_state=0).partial_fit(documents[:FIRST])
    model.partial_fit(documents)
    began = time.process_time()
    model.partial_fit(documents)
    return time.process_time() - began


def theirs(documents, peers, limit):
    """CPU seconds of a reading by each way of the peers."""
    script = str(Path(__file__).parent / "_topics_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        source, counts = f"{folder}/documents.npz", documents.data.astype(int)
        np.savez(source, indptr=documents.indptr, indices=documents.indices, counts=counts, words=documents.shape[1])
        command = [peers, script, source, "", "readings", str(TOPICS), "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
        return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--peers", required=True, help="a Python that has topica and tomotopy")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the peers")
    options = parser.parse_args()
    documents = Stream(TOPICS, WORDS).batch(options.documents)
    seconds = theirs(documents, options.peers, options.limit)
    seconds |= {name: ours(documents, inference) for inference, name in WAYS.items()}
    rates = {name: options.documents / taken for name, taken in seconds.items()}
    readings = [READINGS.get(name, "1") for name in rates]
    table({"way": list(rates), "documents a CPU s": list(rates.values()), "readings": readings})
    report(
        "documents read once a CPU second, 100 topics, beside topica and tomotopy: each way has a rate",
        rates,
        {*WAYS.values(), *READINGS} <= rates.keys(),
        documents=options.documents,
        words=WORDS,
        topics=TOPICS,
        readings=dict(zip(rates, readings, strict=True)),
    )


if __name__ == "__main__":
    main()

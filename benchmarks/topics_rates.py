"""Documents a CPU second with 100 topics, beside topica and tomotopy: a stream, and fits of a few thousand documents.

Documents of 100 words, 20,000 in all, are those of ``benchmarks.topics_stream``. "partial_fit" is learning from a
stream once it has begun: each document is seen once. Others are whole fits: ``fit`` without draws, and by default;
topica's CTM with its defaults, and tomotopy's with 200 iterations, which is fewer than it needs. Rates are by the CPU
seconds of the process, so that a busy machine changes them little. ``cosine`` is that with the topics drawn: what so
few documents can tell.

    python -m benchmarks.topics_rates --peers path/to/python [--documents 2048] [--limit 600] [--whole]

The peers' environment has topica, tomotopy and NumPy.
"""

import argparse
import subprocess
import time
import warnings

from benchmarks._common import report, table
from benchmarks.topics_ap import UNSMOOTHED, theirs
from benchmarks.topics_stream import Stream, likeness
from thalweg import CorrelatedTopicModel

TOPICS, WORDS = 100, 20_000


def ours(documents, held, whole):
    """Ways of this library: name, CPU seconds for how many documents, and the topics."""
    model = CorrelatedTopicModel(TOPICS, random_state=0)
    model.partial_fit(documents).partial_fit(held)  # begun and compiled
    began = time.process_time()
    model.partial_fit(held)
    yield "thalweg, partial_fit", time.process_time() - began, held.shape[0], model.components_
    for name, draws in (("thalweg, fit without draws", 0), ("thalweg, fit", 80)) if whole else ():
        began = time.process_time()
        model = CorrelatedTopicModel(TOPICS, draws=draws, random_state=0).fit(documents)
        yield name, time.process_time() - began, documents.shape[0], model.components_


def others(documents, peers, limit):
    """Those of the peers that are done in time."""
    for library in UNSMOOTHED:
        try:
            components, _, (_, seconds) = theirs(documents, TOPICS, library, peers, limit)
        except subprocess.TimeoutExpired:
            print(f"{library}: not done within {limit:g} s", flush=True)
        else:
            yield library, seconds, documents.shape[0], components


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=2048)
    parser.add_argument("--peers", required=True, help="a Python that has topica and tomotopy")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a fit of topica or tomotopy")
    parser.add_argument("--whole", action="store_true", help="fits of this library too, which take minutes")
    options = parser.parse_args()
    stream = Stream(TOPICS, WORDS)
    documents, held = stream.batch(options.documents), stream.batch(options.documents)
    rows = {"way": [], "CPU s": [], "documents a CPU s": [], "cosine": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for source in (ours(documents, held, options.whole), others(documents, options.peers, options.limit)):
            for name, seconds, count, components in source:
                found = name, seconds, count / seconds, likeness(components, stream.topics)
                for column, value in zip(rows.values(), found, strict=True):
                    column.append(value)
                print(*found, flush=True)
    table(rows)
    rates = dict(zip(rows["way"], rows["documents a CPU s"], strict=True))
    report(
        "a stream of documents with 100 topics is learned from faster, by CPU seconds, than topica, tomotopy fit one",
        rates,
        all(rates["thalweg, partial_fit"] > rates.get(library, 0) for library in UNSMOOTHED),
        documents=options.documents,
        **rows,
    )


if __name__ == "__main__":
    main()

"""Topics of other libraries, in an environment of their own: counts in, topics and prior out.

Run by ``benchmarks.topics_ap`` and ``benchmarks.topics_rates`` with ``--peers``: reads an .npz file, prints one line of
JSON with seconds; what was found is in another file.
"""

import itertools
import json
import sys
import time

import numpy as np

ITERATIONS = 200
"""Of tomotopy. On AP with 10 topics 1,000 took five times as long and came to −8.31 instead of −8.40."""


def documents(data):
    starts = data["indptr"]
    return [np.repeat(data["indices"][a:b], data["counts"][a:b]).astype(int) for a, b in itertools.pairwise(starts)]


def tomotopy_ctm(data, topics, seed):
    import tomotopy

    model = tomotopy.CTModel(k=topics, seed=seed)
    for words in documents(data):
        model.add_doc([str(word) for word in words])
    model.train(0)
    model.train(ITERATIONS, workers=2)
    known = {word: column for column, word in enumerate(model.used_vocabs)}
    columns = np.array([int(word) for word in known])
    components = np.full((topics, int(data["words"])), 1e-9)
    for k in range(topics):
        components[k, columns] = model.get_topic_word_dist(k)
    return components, np.asarray(model.prior_mean), np.asarray(model.prior_cov)


def topica_ctm(data, topics, seed):
    import topica

    model = topica.CTM(num_topics=topics, seed=seed)
    model.fit([[str(word) for word in words] for words in documents(data)])
    components = np.full((topics, int(data["words"])), 1e-9)
    components[:, np.array([int(word) for word in model.vocabulary])] = np.asarray(model.topic_word)
    # Of all topics but the last, whose z is 0: the scorer knows this form.
    return components, np.asarray(model.eta_mean).mean(axis=0), np.asarray(model.topic_covariance)


def readings(data, topics):
    """CPU seconds for reading all documents once, by the difference of runs that do so more and less often."""
    import tomotopy
    import topica

    texts = [[str(word) for word in words] for words in documents(data)]

    def by_topica(inference, times):
        model = topica.CTM(num_topics=topics, seed=0, init="random")
        began = time.process_time()
        model.fit(texts, iters=times, convergence_tol=0, inference=inference, num_threads=2)
        return time.process_time() - began

    def by_tomotopy(times):
        began = time.process_time()
        gibbs.train(times, workers=2)
        return time.process_time() - began

    gibbs = tomotopy.CTModel(k=topics, seed=0)
    for text in texts:
        gibbs.add_doc(text)
    gibbs.train(2, workers=2)
    found = {f"topica, {way}": (by_topica(way, 6) - by_topica(way, 2)) / 4 for way in ("svi", "batch")}
    return found | {"tomotopy": by_tomotopy(4) / 4}


if __name__ == "__main__":
    source, target, library, topics, seed = sys.argv[1:]
    data = np.load(source)
    if library == "readings":
        print(json.dumps(readings(data, int(topics))))
        sys.exit()
    began = time.perf_counter(), time.process_time()
    found = {"tomotopy": tomotopy_ctm, "topica": topica_ctm}[library](data, int(topics), int(seed))
    seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    components = found[0] / found[0].sum(axis=1, keepdims=True)
    np.savez(target, components=components, mean=found[1], covariance=found[2])
    print(json.dumps({"wall": seconds[0], "cpu": seconds[1]}))

"""Document completion of 1,123 articles of the Associated Press: seconds, errors, and what the draws are worth.

Topics are scikit-learn's (LDA, half of the articles, six passes). They are scored with LDA's own prior, and with a
logistic-normal one, learned by EM from a quarter of the training articles. "worth" is the effective number of
500 importance draws from the Laplace approximation of the logistic-normal posterior, which is what the chains start
from: median and tenth percentile over every fourth document. "long" is the score of 200 documents by far longer
chains, less the default's of the same documents. Needs the data sets (THALWEG_DATA).

``python -m benchmarks.topics_completion`` (``--topics 10 50``).
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import softmax
from sklearn.decomposition import LatentDirichletAllocation

from benchmarks._common import report, table
from thalweg.data import load
from thalweg.topics import Dirichlet, LogisticNormal, document_completion, split_tokens

DRAWS = 500


class Longer:
    """A prior whose chains are longer."""

    def __init__(self, prior, **size):
        self.prior, self.size = prior, size

    def part(self, rows):
        """Itself."""
        return self

    def chains(self, *arguments):
        """As those of the prior."""
        return self.prior.chains(*arguments, **self.size)


def corpus() -> tuple[csr_array, csr_array]:
    ap = load("ap")
    counts = csr_array((ap.counts.astype(np.int64), ap.indices.astype(np.int32), ap.indptr), shape=(2246, 10473))
    order = np.random.default_rng(0).permutation(2246)
    return counts[order[:1123]], counts[order[1123:]]


def learn(train: csr_array, topics: int) -> tuple[np.ndarray, dict]:
    model = LatentDirichletAllocation(topics, max_iter=6, random_state=0).fit(train)
    components = model.components_ / model.components_.sum(axis=1, keepdims=True)
    priors = {"logistic-normal": normal(components, train[::4]), "Dirichlet": Dirichlet(np.full(topics, 1 / topics))}
    return components, priors


def laplace(words: np.ndarray, times: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> tuple[Any, Any]:
    """About the mode of a document's posterior, and a square root of about its covariance there, by steps of EM."""
    z = mean
    for _ in range(30):
        proportions = softmax(z)
        shares = proportions * (words @ (times / (proportions @ words)))
        curvature = precision + times.sum() * (np.diag(proportions) - np.outer(proportions, proportions))
        z = z - np.linalg.solve(curvature, precision @ (z - mean) - shares + times.sum() * proportions)
    return z, np.linalg.inv(np.linalg.cholesky(curvature)).T


def documents(components: np.ndarray, counts: csr_array) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """p(word | topic) of each document's words, and how often it has them."""
    for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        yield components[:, counts.indices[begin:end]], counts.data[begin:end].astype(float)


def normal(components: np.ndarray, counts: csr_array) -> LogisticNormal:
    """The prior by six rounds of EM with Laplace approximations of the documents' posteriors."""
    mean, covariance = np.zeros(len(components)), np.eye(len(components))
    for _ in range(6):
        precision = np.linalg.inv(covariance)
        found = [laplace(words, times, mean, precision) for words, times in documents(components, counts)]
        mode, root = (np.stack(part) for part in zip(*found, strict=True))
        mean = mode.mean(axis=0)
        spread = np.cov(mode.T, bias=True) + np.einsum("nab,ncb->ac", root, root) / len(root)
        covariance = 0.95 * spread + 0.05 * np.eye(len(mean))
    return LogisticNormal(mean, covariance)


def worth(prior: LogisticNormal, components: np.ndarray, observed: csr_array) -> np.ndarray:
    """The effective number of importance draws from each document's Laplace approximation."""
    rng = np.random.default_rng(0)
    precision = np.linalg.inv(prior.covariance)
    found = []
    for words, times in documents(components, observed):
        mode, root = laplace(words, times, prior.mean, precision)
        normals = rng.standard_normal((DRAWS, len(mode)))
        z = mode + normals @ root.T
        away = z - prior.mean
        target = np.log(softmax(z, axis=1) @ words) @ times - 0.5 * np.sum((away @ precision) * away, axis=1)
        found.append(1 / np.sum(softmax(target + 0.5 * np.sum(normals**2, axis=1)) ** 2))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 50])
    arguments = parser.parse_args()
    train, test = corpus()
    rows = []
    for topics in arguments.topics:
        components, priors = learn(train, topics)
        draws = worth(priors["logistic-normal"], components, split_tokens(test[::4], 0)[0])
        for name, prior in priors.items():
            began = time.process_time()
            found = document_completion(test, components, prior)
            seconds = time.process_time() - began
            few = document_completion(test[:200], components, prior)
            size = {"chains": 32, "moves": 100} if name == "logistic-normal" else {"chains": 16, "moves": 60}
            long = document_completion(test[:200], components, Longer(prior, **size))
            error = np.hypot(long.monte_carlo_error, few.monte_carlo_error)
            median, tenth = (np.median(draws), np.quantile(draws, 0.1)) if name == "logistic-normal" else (np.nan,) * 2
            ours = found.score, found.standard_error, found.monte_carlo_error, seconds
            rows.append((topics, name, *ours, long.score - few.score, error, float(median), float(tenth)))
    headers = ("topics", "prior", "score", "± documents", "± Monte Carlo", "CPU s", "long", "± long", "worth", "tenth")
    columns = {header: list(column) for header, column in zip(headers, zip(*rows, strict=True), strict=True)}
    table(columns)
    slowest, apart = max(columns["CPU s"]), max(abs(row[6]) for row in rows)
    report(
        "AP, 1,123 documents: completion within 10 CPU seconds, and within 0.005 nats of far longer chains",
        {"CPU seconds": slowest, "apart": apart},
        slowest < 10 and apart < 0.005,
        **{
            f"{row[0]} topics, {row[1]}": {h: v for h, v in zip(headers[2:], row[2:], strict=True) if np.isfinite(v)}
            for row in rows
        },
    )


if __name__ == "__main__":
    main()

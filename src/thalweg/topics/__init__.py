"""Topics of documents: what readers look at, how well topics predict, and a browser for them.

==========================  =======================================================================================
words and documents         :func:`top_words`, :func:`top_indices`, :func:`word_scores`, :func:`top_documents`
which topics go together    :func:`topic_correlations`, :func:`correlation_graph`
a page of HTML              :func:`topic_browser`
quality of topics           :func:`u_mass`, :func:`npmi`, :func:`exclusivity`
held-out score              :func:`document_completion` under a :class:`LogisticNormal` or :class:`Dirichlet` prior,
                            :func:`split_tokens`
==========================  =======================================================================================
"""

from thalweg.topics.browser import topic_browser
from thalweg.topics.coherence import exclusivity, npmi, u_mass
from thalweg.topics.dirichlet import Dirichlet
from thalweg.topics.held_out import Completion, document_completion, split_tokens
from thalweg.topics.logistic_normal import LogisticNormal
from thalweg.topics.reading import (
    Graph,
    correlation_graph,
    top_documents,
    top_indices,
    top_words,
    topic_correlations,
    word_scores,
)

__all__ = [
    "Completion",
    "Dirichlet",
    "Graph",
    "LogisticNormal",
    "correlation_graph",
    "document_completion",
    "exclusivity",
    "npmi",
    "split_tokens",
    "top_documents",
    "top_indices",
    "top_words",
    "topic_browser",
    "topic_correlations",
    "u_mass",
    "word_scores",
]

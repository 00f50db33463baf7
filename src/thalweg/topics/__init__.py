"""Topics of documents: learning them, what readers look at, how well they predict, and a browser for them.

Learning is by documents' posteriors (proximal gradients) and variational EM: :func:`fit_topics`,
:func:`continue_topics`, :func:`refined`, :func:`document_posteriors`. The rest works for the topics of any library:

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
from thalweg.topics.chains import Dirichlet, LogisticNormal
from thalweg.topics.corpus import LearnedTopics, Topics, TopicSettings, fit_topics
from thalweg.topics.documents import Inference, TopicPosteriors, document_posteriors
from thalweg.topics.effects import Effects, refined
from thalweg.topics.held_out import Completion, document_completion, split_tokens
from thalweg.topics.prevalence import Prevalence, TopicMoments
from thalweg.topics.reading import (
    Graph,
    correlation_graph,
    exclusivity,
    npmi,
    top_documents,
    top_indices,
    top_words,
    topic_correlations,
    u_mass,
    word_scores,
)
from thalweg.topics.start import starting_topics
from thalweg.topics.stream import continue_topics

__all__ = [
    "Completion",
    "Dirichlet",
    "Effects",
    "Graph",
    "Inference",
    "LearnedTopics",
    "LogisticNormal",
    "Prevalence",
    "TopicMoments",
    "TopicPosteriors",
    "TopicSettings",
    "Topics",
    "continue_topics",
    "correlation_graph",
    "document_completion",
    "document_posteriors",
    "exclusivity",
    "fit_topics",
    "npmi",
    "refined",
    "split_tokens",
    "starting_topics",
    "top_documents",
    "top_indices",
    "top_words",
    "topic_browser",
    "topic_correlations",
    "u_mass",
    "word_scores",
]

"""Correlated topics: documents' posteriors by proximal gradients, topics and their prior by variational EM."""

from thalweg.topics.corpus import Learned, Topics, TopicSettings, continue_topics, fit_topics
from thalweg.topics.effects import Effects, measured
from thalweg.topics.expectations import METHODS
from thalweg.topics.inference import Inference, TopicPosteriors, document_posteriors
from thalweg.topics.prevalence import Moments, Prevalence
from thalweg.topics.start import starting_topics

__all__ = [
    "METHODS",
    "Effects",
    "Inference",
    "Learned",
    "Moments",
    "Prevalence",
    "TopicPosteriors",
    "TopicSettings",
    "Topics",
    "continue_topics",
    "document_posteriors",
    "fit_topics",
    "measured",
    "starting_topics",
]

"""Methods to read a fitted topic model with: the functions of :mod:`thalweg.topics` on its attributes."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from thalweg import arguments, topics


class TopicReader:
    """Base of estimators with ``components_``, ``mean_``, ``covariance_`` and ``transform``."""

    components_: np.ndarray
    mean_: np.ndarray
    covariance_: np.ndarray

    def top_words(self, vocabulary: Any = None, n: int = 10, by: str = "probability") -> list[list[str]]:
        """Return the first words of each topic.

        Parameters
        ----------
        vocabulary
            A word for each column, such as a vectorizer's ``get_feature_names_out()``, or a mapping from words to
            columns, such as its ``vocabulary_``. By default the names of the columns that the model was fitted to.
        n
            How many.
        by
            "probability", "frex" (frequent and exclusive) or "lift".
        """
        check_is_fitted(self)
        return topics.top_words(self.components_, self._vocabulary(vocabulary), n, by)

    def top_documents(self, X: Any, topic: int, n: int = 10) -> np.ndarray:
        """Return the rows of ``X`` with the largest share of a topic, the largest first."""
        return topics.top_documents(self.transform(X), topic, n)  # type: ignore[attr-defined]

    def topic_correlations(self) -> np.ndarray:
        """Return the correlations of topics under the prior."""
        check_is_fitted(self)
        return topics.topic_correlations(covariance=self.covariance_)

    def coherence(self, X: Any, n: int = 10, measure: str = "npmi") -> np.ndarray:
        """Return the coherence of each topic's first words in the documents ``X``: "npmi" or "u_mass"."""
        check_is_fitted(self)
        measures = {"npmi": topics.npmi, "u_mass": topics.u_mass}
        return measures[arguments.one_of("measure", measure, tuple(measures))](
            topics.top_indices(self.components_, n), X
        )

    def completion(self, X: Any, random_state: int = 0) -> topics.Completion:
        """Score how well one half of each document is predicted from the other: nats a token, with a standard error.

        See :func:`thalweg.topics.document_completion`. Covariates are taken to be as they are on average.
        """
        check_is_fitted(self)
        prior = topics.LogisticNormal(self.mean_, self.covariance_)
        return topics.document_completion(X, self.components_, prior, random_state=random_state)

    def browser(self, X: Any, vocabulary: Any = None, documents: Any = None, title: str = "Topics") -> str:
        """Return a page of HTML to look at the topics with: a map, words, documents, correlations and a search.

        Parameters
        ----------
        X
            The documents to show.
        vocabulary
            As in :meth:`top_words`.
        documents
            A title or the beginning of each; by default the words that it uses most.
        title
            Of the page.
        """
        shares = self.transform(X)  # type: ignore[attr-defined]
        words = self._vocabulary(vocabulary)
        return topics.topic_browser(self.components_, words, shares, counts=X, documents=documents, title=title)

    def _vocabulary(self, vocabulary: Any) -> Any:
        if vocabulary is not None:
            return vocabulary
        names = getattr(self, "feature_names_in_", None)
        return [f"x{column}" for column in range(self.components_.shape[1])] if names is None else names

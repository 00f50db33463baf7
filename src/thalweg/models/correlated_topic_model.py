"""Correlated topics of documents."""

import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array, issparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from thalweg import arguments, topics
from thalweg.models._common import Storable, settings_of, unharmed
from thalweg.models._covariates import CovariateScaling
from thalweg.models._inputs import validated
from thalweg.models._summary import Summary
from thalweg.runs import Run

LEAST_EFFECT_DRAWS = 10
"""Effects whose draws are worth fewer independent ones have deviations that are off by a fifth; effects() warns."""
MAX_DOCUMENT_WORDS = 1e6
"""Single precision, in which documents are summed up, counts to sixteen times as many."""


@dataclass(repr=False, eq=False)
class CorrelatedTopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Storable):
    """Topics of documents that may occur together: the correlated topic model, with covariates of prevalence.

    A document has a vector z ~ N(μ, Σ), its topics have the proportions softmax(z), and each word is drawn from a topic
    drawn from them. Σ says which topics go together. With covariates x_d the mean is Cᵀx_d, as in the structural topic
    model: see :meth:`effects`. Topics start from anchor words, which are found without chance, so that another
    ``random_state`` finds the same topics.

    Parameters
    ----------
    n_components
        How many topics.
    inference
        How the posterior of a document's z is found. "pgsvi" (default): a Gaussian with full covariance, by stochastic
        proximal gradients; "pgsvi-mf": with a diagonal one, cheaper with many topics. For comparison "mean-field"
        (Blei and Lafferty's bound), "laplace" and "delta" (Wang and Blei).
    smoothing
        How often each topic is taken to have written each word before anything is read.
    batch_size
        Documents whose posteriors are computed at once. More than that are learned from in batches.
    max_iter
        The most passes over the documents.
    tol
        Passes end when the last five gained less than this each in the mean, in nats a word, of the bound on log p.
    step
        How far a step of a posterior goes to where its gradient says, at most 1.
    samples
        Points for each expectation.
    decay
        The n-th batch counts n^−decay of what was learned from those before.
    draws
        After the passes of :meth:`fit`, topics and prior become their means over so many draws from their joint
        posterior, by a Markov chain: they predict better, and effects of covariates are of the right size. With
        covariates there are as many again until effects are sure. 0 leaves what the passes found, without effects.
    random_state
        Seeds the order of batches and the draws.
    verbose
        Whether to show a progress bar.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        p(word | topic).
    mean_ : array (n_components,)
        μ, or the mean of z where covariates are as they are on average.
    covariance_ : array (n_components, n_components)
        Σ.
    coefficients_ : array (n_covariates, n_components)
        Cᵀ without μ, in the covariates' units.
    history_ : list of float
        The bound on the mean log p of a word, pass by pass.
    n_iter_ : int
        Passes; once ``partial_fit`` has learned, batches that were learned from, those of passes included.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from thalweg import CorrelatedTopicModel
    >>> rng = np.random.default_rng(0)
    >>> kind = rng.integers(2, size=40)                                  # documents about one of two things
    >>> X = rng.poisson(np.where(kind[:, None] == np.arange(6) // 3, 6.0, 0.2))
    >>> model = CorrelatedTopicModel(2, random_state=0).fit(X)
    >>> proportions = model.transform(X)
    >>> agree = np.mean(proportions.argmax(axis=1) == kind)
    >>> bool(max(agree, 1 - agree) > 0.95)
    True
    """

    _trials: ClassVar[tuple[str, ...]] = ("transform",)
    _true_tags: ClassVar[tuple[str, ...]] = ("input_tags.sparse", "input_tags.positive_only")
    _parameter_constraints: ClassVar[dict] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "inference": [StrOptions(set(topics.TopicSettings.methods))],
        "smoothing": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "step": [Interval(Real, 0, 1, closed="right")],
        "samples": [Interval(Integral, 2, None, closed="left")],
        "decay": [Interval(Real, 0.5, 1, closed="both")],
        "draws": [Interval(Integral, 0, None, closed="left")],
    }

    n_components: int = 10
    _: KW_ONLY
    inference: str = "pgsvi"
    smoothing: float = 0.2
    batch_size: int = 2048
    max_iter: int = 100
    tol: float = 4e-4
    step: float = 0.9
    samples: int = 4
    decay: float = 0.6
    draws: int = 80
    random_state: Any = None
    verbose: bool = False

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, covariates: Any = None) -> "CorrelatedTopicModel":
        """Learn topics and their prior. Ctrl-C ends it with the topics that were found so far.

        Parameters
        ----------
        X
            Counts of words, a row for each document: a SciPy sparse matrix, as a vectoriser makes it, or an array.
        y
            Not used.
        covariates
            What prevalence may depend on, a row of numbers for each document, or a data frame.
        """
        with unharmed(self), Run("topics", bar=bool(self.verbose)) as run:
            counts, design = self._read(X, covariates, reset=True)
            learned = topics.fit_topics(counts, design, self._settings(), self._seed())
            self._store(learned.state)
            self.history_, self.n_iter_ = learned.scores, len(learned.scores)
            run.keep(self)
            if not (learned.converged or run.interrupted):
                message = f"{self.max_iter} passes were not enough: raise max_iter, or tol, found tol={self.tol}"
                warnings.warn(message, ConvergenceWarning, stacklevel=3)
            if self.draws and self.n_components > 1 and not run.interrupted:
                self._store(*topics.refined(counts, design, self._state, self._settings(), self._seed()))
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, *, covariates: Any = None) -> "CorrelatedTopicModel":
        """Learn from one more batch of documents; memory is bounded, however many there were before.

        Topics start from the first documents. Where those are fewer than 200 for each topic, they are stored, and
        topics start again once there are four times as many.

        Parameters
        ----------
        X
            Counts of words, of the same vocabulary at every call.
        y
            Not used.
        covariates
            As for :meth:`fit`; in all calls or in none.
        """
        with unharmed(self):
            state = getattr(self, "_state", None)
            if state is not None:
                self._refuse_change(covariates)
            counts, design = self._read(X, covariates, reset=state is None)
            self._store(topics.continue_topics(state, counts, design, self._settings(), self._seed()))
            self.n_iter_ = self._state.batches
            self.history_ = getattr(self, "history_", [])
        return self

    def transform(self, X: Any, *, covariates: Any = None) -> Float[np.ndarray, "n k"]:
        """Return the expected proportions of topics in documents, rows that sum to one.

        Parameters
        ----------
        X
            Counts of words. A document without any gets the prior's proportions.
        covariates
            Those of the documents, if the model has learned with covariates; else the average ones are taken.
        """
        return np.concatenate([part.proportions for part in self._posteriors(*self._read(X, covariates))])

    def posterior(self, X: Any, *, covariates: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return means and covariances of z, of which softmax(z) are the proportions, given each document's words.

        With "pgsvi" they maximise the document's bound (PG-SVI, eq. 38) over all means and covariances, up to the noise
        of the draws.
        """
        parts = list(self._posteriors(*self._read(X, covariates), exact=self.inference == "pgsvi"))
        return np.concatenate([part.means for part in parts]), np.concatenate([part.covariances for part in parts])

    def score(self, X: Any, y: Any = None, *, covariates: Any = None) -> float:
        """Return a lower bound on the mean log p of a word, in nats, of documents that are read as a whole."""
        counts, design = self._read(X, covariates)
        _refuse_no_words(counts)
        bound = sum(float(np.sum(part.bounds)) for part in self._posteriors(counts, design))
        return bound / float(counts.sum())

    def perplexity(self, X: Any, *, covariates: Any = None) -> float:
        """Return exp(−score): an upper bound on how many words a word is as uncertain as."""
        return float(np.exp(-self.score(X, covariates=covariates)))

    def effects(self) -> Summary:
        """Return how the covariates change the prevalence of topics: a table with a row for each topic and covariate.

        An effect is the change of z_k, less the mean change over topics, when the covariate grows by one: of the log of
        the proportion over the geometric mean of all proportions. Its mean and deviation are over draws from the joint
        posterior of effects, Σ, topics and documents, by a Markov chain that :meth:`fit` runs after it has found the
        topics. Intervals cover if the topics were found; topics that are mixed up have other effects.
        """
        check_is_fitted(self)
        if self._effects is None:
            raise ValueError(
                "effects() needs two topics or more, fit(X, covariates=…) and draws above 0: found a model without, or "
                "one that has learned from a batch since"
            )
        if self._effects.worth < LEAST_EFFECT_DRAWS:
            rough = f"draws of effects are worth {self._effects.worth:.0f} independent ones only: deviations are rough"
            warnings.warn(f"{rough}, since documents say too little of so many topics", UserWarning, stacklevel=2)
        means = self._effects.coefficients.T[:, 1:] / self._covariates.scales
        variances = np.diagonal(self._effects.covariances, axis1=1, axis2=2)[:, 1:]
        deviations = np.sqrt(variances) / self._covariates.scales
        names = [f"topic {k}: {name}" for k in range(len(means)) for name in self._covariates.names]
        return Summary(names, means.ravel(), deviations.ravel())

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
        return topics.top_documents(self.transform(X), topic, n)

    def topic_correlations(self) -> np.ndarray:
        """Return the correlations of topics under the prior."""
        check_is_fitted(self)
        return topics.topic_correlations(covariance=self.covariance_)

    def coherence(self, X: Any, n: int = 10, measure: str = "npmi") -> np.ndarray:
        """Return the coherence of each topic's first words in the documents ``X``: "npmi" or "u_mass"."""
        check_is_fitted(self)
        measures = {"npmi": topics.npmi, "u_mass": topics.u_mass}
        coherence = measures[arguments.one_of("measure", measure, measures)]
        return coherence(topics.top_indices(self.components_, n), X)

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
        shares = self.transform(X)
        words = self._vocabulary(vocabulary)
        return topics.topic_browser(self.components_, words, shares, counts=X, documents=documents, title=title)

    def _vocabulary(self, vocabulary: Any) -> Any:
        if vocabulary is not None:
            return vocabulary
        names = getattr(self, "feature_names_in_", None)
        return [f"x{column}" for column in range(self.components_.shape[1])] if names is None else names

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _settings(self) -> topics.TopicSettings:
        changed = {"method": self.inference, "passes": self.max_iter, "tolerance": self.tol}
        return settings_of(topics.TopicSettings, self, topics=int(self.n_components), **changed)

    def _read(self, X: Any, covariates: Any, reset: bool = False) -> tuple[csr_array, np.ndarray]:
        """Return counts and a design matrix, checked; ``reset`` if the model learns their words and scales anew."""
        if not reset:
            check_is_fitted(self)
        if _holds_texts(X):
            raise ValueError("X must be a table of counts, found texts: make one with CountVectorizer().fit_transform")
        options: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float32, "ensure_non_negative": True}
        counts = csr_array(validated(self, X, reset=reset, **options))
        counts.sum_duplicates()
        counts.eliminate_zeros()
        if reset:
            _refuse_no_words(counts)
        longest = float(counts.sum(axis=1).max())
        if longest > MAX_DOCUMENT_WORDS:
            most = f"at most {MAX_DOCUMENT_WORDS:.0e} words a document, which single precision can count"
            raise ValueError(f"X must have {most}, found {longest:.3g}")
        if np.any(counts.data != np.floor(counts.data)):
            taken = "X holds fractions, and they are taken for counts of words: weights such as tf-idf make documents"
            warnings.warn(f"{taken} seem shorter, and topics less certain, than they are", UserWarning, stacklevel=4)
        if reset:
            self._covariates = CovariateScaling.of(covariates, counts.shape[0])
        return counts, self._covariates.design(covariates, counts.shape[0])

    def _refuse_change(self, covariates: Any) -> None:
        """Refuse to go on with other topics, or without the covariates, than the documents before had."""
        if len(self.components_) != self.n_components:
            must = f"n_components must stay {len(self.components_)} after partial_fit"
            raise ValueError(f"{must}, found {self.n_components}: fit learns anew")
        if covariates is None and self._covariates.names:
            raise ValueError(f"covariates must be given as before, found None instead of {self._covariates.names}")

    def _store(self, state: topics.Topics, effects: topics.Effects | None = None) -> None:
        self._state, self._effects = state, effects
        self.components_ = state.components(self.smoothing).T.astype(np.float64)
        self.components_ /= self.components_.sum(axis=1, keepdims=True)
        self.mean_ = state.prevalence.coefficients[0].copy()
        self.covariance_ = state.prevalence.covariance.copy()
        self.coefficients_ = state.prevalence.coefficients[1:] / self._covariates.scales[:, None]

    def _posteriors(
        self, counts: csr_array, design: np.ndarray, exact: bool = False
    ) -> Iterator[topics.TopicPosteriors]:
        how = topics.Inference(self.inference, step=float(self.step), exact=exact)
        parts = topics.document_posteriors(counts, design, self.components_.T, self._state.prevalence, how)
        return (part for _, part in parts)


def _refuse_no_words(counts: csr_array) -> None:
    if counts.nnz == 0:
        raise ValueError(f"X must have words, found {counts.shape[0]} documents without any")


def _holds_texts(X: Any) -> bool:
    """Whether ``X`` is texts, or lists of their words."""
    if issparse(X):
        return False
    first = X if isinstance(X, list | tuple) else np.ravel(np.asarray(X))
    while isinstance(first, list | tuple | np.ndarray) and len(first):
        first = first[0]
    return isinstance(first, str)

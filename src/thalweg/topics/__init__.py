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

from thalweg.topics.browser import *
from thalweg.topics.chains import *
from thalweg.topics.corpus import *
from thalweg.topics.documents import *
from thalweg.topics.effects import *
from thalweg.topics.held_out import *
from thalweg.topics.prevalence import *
from thalweg.topics.reading import *
from thalweg.topics.start import *
from thalweg.topics.stream import *

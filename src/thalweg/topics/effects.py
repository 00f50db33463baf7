"""Effects of covariates on the prevalence of topics, with errors that count what documents leave open.

z_d ~ N(Cᵀx_d, Σ) is not seen; a document's words leave the posterior covariance V_d. By Louis (1982) the information
about C that is left is Σ_d x_dx_dᵀ ⊗ (Σ⁻¹ − Σ⁻¹V_dΣ⁻¹), none where V_d = Σ, and its inverse is the covariance of C. One
step of Newton's method with it makes up for what variational EM, slow where much is missing, has not reached yet.
All in the contrasts of topics, since words say nothing of what all entries of z share.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from thalweg.files import storable
from thalweg.topics.inference import Inference, document_posteriors
from thalweg.topics.prevalence import Prevalence, contrasts

_ROUNDS = 5
_STEPS = 4


@storable
class Effects(NamedTuple):
    """Coefficients C, of which each row sums to zero over topics, and the covariance of each topic's column.

    Examples
    --------
    >>> Effects._fields
    ('coefficients', 'covariances')
    """

    coefficients: Float[np.ndarray, "p k"]
    covariances: Float[np.ndarray, "k p p"]


def measured(
    counts: csr_array,
    design: Float[np.ndarray, "n p"],
    topics: Float[np.ndarray, "v k"],
    prevalence: Prevalence,
    how: Inference,
    ridge: float = 1.0,
) -> tuple[Effects, Prevalence]:
    """Effects under topics that are known, and the prior with them.

    Examples
    --------
    >>> table = csr_array(np.repeat([[9.0, 0.0], [0.0, 9.0]], 20, axis=0).astype(np.float32))
    >>> design = np.column_stack([np.ones(40), np.repeat([1.0, -1.0], 20)])
    >>> topics = np.array([[0.9, 0.1], [0.1, 0.9]])
    >>> found, _ = measured(table, design, topics, Prevalence.start(2, 2), Inference())
    >>> bool(found.coefficients[1, 0] > 0.5), bool(np.allclose(found.coefficients.sum(axis=1), 0))
    (True, True)
    """
    sides = topics.shape[1]
    basis = contrasts(sides)
    means = np.zeros((len(design), sides))
    for rows, found in document_posteriors(counts, design, topics, prevalence, how._replace(exact=False)):
        means[rows] = found.means
    for _ in range(_ROUNDS):
        information, slope, spread = _gathered(
            counts, design, topics, prevalence, how._replace(steps=_STEPS), basis, means
        )
        belief = np.kron(np.diag([0.0] + [ridge] * (design.shape[1] - 1)), np.eye(sides - 1))
        inside = prevalence.coefficients @ basis
        move = np.linalg.solve(information + belief, slope.ravel() - belief @ inside.ravel())
        learned = inside + move.reshape(inside.shape)
        shared = np.mean(prevalence.coefficients, axis=1, keepdims=True)
        prevalence = Prevalence(learned @ basis.T + shared, _with_contrasts(prevalence.covariance, basis, spread))
    covariance = np.linalg.inv(information + belief).reshape(design.shape[1], sides - 1, design.shape[1], sides - 1)
    of_topics = np.einsum("kr,prqs,ks->kpq", basis, covariance, basis)
    return Effects(learned @ basis.T, of_topics), prevalence


def _with_contrasts(covariance: np.ndarray, basis: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Σ with its part within the contrasts replaced; the rest, of which words say nothing, stands apart from it."""
    shared = np.mean(covariance)
    return basis @ inside @ basis.T + shared


def _gathered(
    counts: csr_array,
    design: np.ndarray,
    topics: np.ndarray,
    prevalence: Prevalence,
    how: Inference,
    basis: np.ndarray,
    means: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The information about C, the slope of the log-likelihood in C, and the next Σ, in contrasts; moves the means."""
    inside = basis.T @ prevalence.covariance @ basis
    precision = np.linalg.inv(inside)
    covariates, sides = design.shape[1], basis.shape[1]
    information = np.zeros((covariates, sides, covariates, sides))
    slope, spread = np.zeros((covariates, sides)), np.zeros((sides, sides))
    for rows, found in document_posteriors(counts, design, topics, prevalence, how, means):
        means[rows] = found.means
        left = basis.T @ found.covariances @ basis
        known = precision - precision @ left @ precision
        x = design[rows]
        information += np.einsum("np,nq,nrs->prqs", x, x, known, optimize=True)
        apart = found.means @ basis - x @ (prevalence.coefficients @ basis)
        slope += x.T @ (apart @ precision)
        spread += apart.T @ apart + left.sum(axis=0)
    size = covariates * sides
    # Directions of which documents say nothing have no information, up to noise: they must not look certain.
    values, vectors = np.linalg.eigh(information.reshape(size, size))
    floor = 1e-6 * max(values[-1], 1e-12)
    information = (vectors * np.maximum(values, floor)) @ vectors.T
    return information, slope, spread / max(len(design), 1)

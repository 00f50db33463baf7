"""
Regression of counts, with uncertainty
======================================

Counts that vary more than a Poisson distribution allows make Poisson regression too sure of itself. The negative
binomial model learns how much they vary. Both give a posterior over coefficients, and a table of it.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from thalweg.models import NegativeBinomialGLM, PoissonGLM

# %%
# Three hundred counts that depend on two of four features. Each has a rate of its own around its mean, so that the
# variance is the mean plus 0.8 times its square.

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
truth = np.array([0.6, -0.4, 0.0, 0.0])
mean = np.exp(1 + X @ truth)
y = rng.poisson(mean * rng.gamma(1 / 0.8, 0.8, size=300))

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    poisson = PoissonGLM().fit(X, y)
print(said[0].message)  # it notices
negative_binomial = NegativeBinomialGLM().fit(X, y)
print(f"Learned dispersion: {negative_binomial.dispersion_:.2f}")
print(negative_binomial.summary())

# %%
# The bound on the log evidence says which model explains the counts, in nats.

print(f"Poisson {poisson.elbo_:.0f} nats, negative binomial {negative_binomial.elbo_:.0f} nats")

# %%
# Intervals of 95 %: those of the Poisson model are too narrow.

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for offset, (name, model) in enumerate({"Poisson": poisson, "negative binomial": negative_binomial}.items()):
    low, high = model.interval()[1:].T
    place = np.arange(4) + 0.2 * offset - 0.1
    axes.errorbar(place, model.coef_, yerr=[model.coef_ - low, high - model.coef_], fmt="o", label=name)
axes.plot(np.arange(4), truth, "k_", markersize=24, label="truth")
axes.set_xticks(range(4), [f"x{index}" for index in range(4)])
axes.set_ylabel("coefficient")
axes.legend()
plt.show()

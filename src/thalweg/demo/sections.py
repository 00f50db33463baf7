"""The sections of the demonstration, in the order of the report."""

from thalweg.demo.completion import completion
from thalweg.demo.digits import digits
from thalweg.demo.gp import gp
from thalweg.demo.lasso import lasso
from thalweg.demo.logistic import logistic
from thalweg.demo.regression import regression
from thalweg.demo.topics import topics

SECTIONS = (lasso, logistic, gp, digits, regression, topics, completion)

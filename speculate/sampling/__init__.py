"""Sampling: how tokens are chosen, and which drafts are accepted.

A sampler of one's own needs `acceptance_rule` and, for annotations, the other names here.
"""

from speculate.sampling.acceptance import AcceptanceRule as AcceptanceRule
from speculate.sampling.acceptance import TokenDistribution as TokenDistribution
from speculate.sampling.acceptance import acceptance_rule as acceptance_rule
from speculate.sampling.options import Mode as Mode

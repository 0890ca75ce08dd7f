"""Sentences of the literature as configs plus expectations; running one gives a verdict.

A claim is a YAML file under configs/claims/<area>/: title, source, statement, the runs to compare, what is expected of
their metrics, and how long it takes. An expectation holds on the mean over seeds or in every seed.
"""

from toytf.claims.check import check_claims, choose
from toytf.claims.claim import Claim, Expectation, load_claim
from toytf.claims.verdict import Finding, Outcome, Verdict, compare

__all__ = ["Claim", "Expectation", "Finding", "Outcome", "Verdict", "check_claims", "choose", "compare", "load_claim"]

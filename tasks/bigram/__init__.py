"""Bigram induction."""

"""Factual recall."""

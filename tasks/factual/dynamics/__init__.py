"""The experiment `fact_dynamics`: in which order facts are learned."""

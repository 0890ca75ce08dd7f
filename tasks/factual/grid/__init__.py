"""The experiment `fact_grid`: which models learn one table of facts."""

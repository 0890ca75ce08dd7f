"""The experiment `optimisers`: which scheme each optimiser stores, and what it costs in error."""

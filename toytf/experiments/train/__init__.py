"""The experiment `train`."""

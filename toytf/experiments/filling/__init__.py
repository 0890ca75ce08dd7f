"""The experiment `filling`: a trained model near the limit of what its matrices can hold."""

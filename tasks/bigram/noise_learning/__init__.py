"""The experiment `noise_learning`: how many samples noise needs to be learned."""

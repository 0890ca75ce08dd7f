"""A task that asks for the previous token, and a probe that counts how often the model says it."""

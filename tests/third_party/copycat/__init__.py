"""A task that asks for the previous token, a probe that counts how often the model says it, and a study of chance."""

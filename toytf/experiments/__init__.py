"""What a config can run."""

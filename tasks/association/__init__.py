"""The task `association`."""

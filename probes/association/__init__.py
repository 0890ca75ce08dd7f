"""Probes of the task `association`."""

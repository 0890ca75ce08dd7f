"""Sweeps: one config at many points, each with several seeds, from the plan to the table, the figures and the page."""

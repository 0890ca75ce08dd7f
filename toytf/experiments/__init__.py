"""Experiments: what a config runs, how it is launched, and what is shown of its runs."""

from toytf.experiments.opened import run_html
from toytf.runs.run import Run

Run.html = run_html

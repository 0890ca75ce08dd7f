"""Engines: where many jobs run, here one by one, in worker processes, or on a Ray cluster."""

from toytf.engines.job import Ended, EngineOptions, Job, JobLost, current_options, using
from toytf.engines.run import check_engine, run_jobs

__all__ = ["Ended", "EngineOptions", "Job", "JobLost", "check_engine", "current_options", "run_jobs", "using"]

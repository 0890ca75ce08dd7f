"""Engines: where many jobs run, here one by one, in worker processes, or on a Ray cluster."""

from toytf.engines.job import ONE_BY_ONE, Ended, EngineOptions, Job, JobLost
from toytf.engines.run import check_engine, run_jobs

__all__ = ["ONE_BY_ONE", "Ended", "EngineOptions", "Job", "JobLost", "check_engine", "run_jobs"]

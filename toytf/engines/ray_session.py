"""A connection to Ray that leaves this process, and its terminal, as they were."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from toytf.engines.job import EngineOptions
from toytf.errors import UserError, reason
from toytf.process import without_memory_limit

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill jobs because other programs take memory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray warns of a change to come if this is not said
}
"""Read by Ray when it is imported and when it starts."""

PATIENCE = 3.0
"""Seconds to wait for a cluster to answer: Ray itself would wait for a quarter of an hour."""


@contextlib.contextmanager
def ray_session(options: EngineOptions) -> Iterator[ModuleType]:
    """Ray, connected; what was started for it ends with it. In a process that is connected already, that connection."""
    check_ray(options)
    with _environment(SETTINGS):
        import ray

        ours = not ray.is_initialized()
        with _silent():
            try:
                if ours:
                    stop = signal.getsignal(signal.SIGTERM)
                    _connect(ray, options)
                    if threading.current_thread() is threading.main_thread():
                        signal.signal(signal.SIGTERM, stop)  # Ray has set its own, which ends us at once
                yield ray
            finally:
                if ours:
                    ray.shutdown()


def check_ray(options: EngineOptions) -> None:
    """Refuse if Ray is not installed, or if nobody listens at the address of the cluster."""
    with _environment(SETTINGS):
        try:
            import ray  # noqa: F401
        except ImportError:
            raise UserError("the engine ray needs Ray: pip install 'toytf[ray]'") from None
    address = options.address
    if address is None or address == "auto":
        return
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not colon:
        raise UserError(f"{address} is not the address of a Ray cluster: give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {reason(error)}") from None


def _connect(ray: ModuleType, options: EngineOptions) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
    if options.address is None:
        # "local", not None: RAY_ADDRESS in the environment would mean another cluster
        with without_memory_limit():
            ray.init(address="local", num_cpus=options.jobs, include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=options.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {options.address}: {reason(error)}") from None


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set these variables, those that a person has set excepted, and restore all that change meanwhile."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in settings.items() if name not in before})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray from printing about workers that died, which no option of it does: we say it ourselves."""
    from ray._private import worker

    before = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = before

"""Workers of a Ray cluster, each an actor.

The model travels to the machines; trtcal has to be installed there, and files of data have to lie under
the same path. Where machines compute floats differently, so may the histograms: by a bin, as between
batch sizes.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.calibration.job import Job, Task
from trtcal.calibration.lanes import TaskResult, TaskRunner
from trtcal.documents import Workplace
from trtcal.errors import BackendError, InputError
from trtcal.model import first_line

ADDRESS = "RAY_ADDRESS"
REACH_S = 10.0


class RayActor:
    """What runs in an actor: an observer over its own copy of the model."""

    def __init__(self, job: Job, files: dict[str, Any]) -> None:
        self.folder = Workplace()
        for name, content in files.items():
            content.tofile(Path(self.folder.name) / name)
        self.runner = TaskRunner(dataclasses.replace(job, folder=Path(self.folder.name)))

    def started(self) -> bool:
        """Return True as soon as the actor is there."""
        return True

    def work(self, task: Task) -> TaskResult:
        """Count the samples of a task."""
        return self.runner.run(task)


class RayWorker:
    """An actor of the cluster."""

    def __init__(self, ray: Any, job: Job, files: Any) -> None:
        self.ray, self.job, self.files = ray, job, files
        self.lost: type[BaseException] = ray.exceptions.RayActorError
        options = {"num_cpus": job.threads, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self.actor = ray.remote(RayActor).options(**options).remote(job, files)
        self.started: Future[bool] = self.actor.started.remote().future()

    @property
    def ready(self) -> bool:
        """Whether the cluster had room for it."""
        if self.started.done() and (error := self.started.exception()) is not None:
            raise BackendError(
                f"a worker does not start on the Ray cluster: {error!r}"[:400],
                "install the same trtcal on all machines of the cluster",
            ) from error
        return self.started.done()

    def submit(self, task: Task) -> Future[TaskResult]:
        """Begin a task."""
        future: Future[TaskResult] = self.actor.work.remote(task).future()
        return future

    def again(self) -> RayWorker:
        """Return a new actor, ready when the cluster has room for it."""
        return RayWorker(self.ray, self.job, self.files)

    def stop(self) -> None:
        """Do nothing: a task is short, and is finished."""

    def close(self) -> None:
        """End the actor."""
        self.ray.kill(self.actor)


def ray_workers(job: Job, workers: int) -> list[RayWorker]:
    """Return workers of the cluster at `RAY_ADDRESS` or, if that is not set, of this machine's cluster.

    0 workers are as many as the cluster has cores for. `BackendError` if there is no Ray or no
    cluster, `InputError` if it has not cores enough.
    """
    ray = connected()
    most = int(ray.cluster_resources().get("CPU", 0)) // job.threads
    if workers > most or not most:
        raise InputError(
            f"the Ray cluster has cores for {most} workers with {job.threads} threads, not {workers}",
            "give fewer --workers, or add machines to the cluster",
        )
    content = {
        path.name: np.fromfile(path, np.uint8) for path in job.folder.iterdir() if path.is_file()
    }
    files = ray.put(content)
    return [RayWorker(ray, job, files) for _ in range(workers or most)]


def connected() -> Any:
    """Return Ray's module, connected to a cluster that is there."""
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise BackendError(
            "Ray is not installed", "pip install 'trtcal[ray]', or use --workers on this machine"
        ) from error
    if not ray.is_initialized():
        try:
            address = os.environ.get(ADDRESS, "auto")
            _reach(address)
            ray.init(address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise BackendError(
                f"trtcal cannot connect to a Ray cluster: {first_line(error)}",
                f"start one with `ray start --head`, or set {ADDRESS}",
            ) from error
    return ray


def _reach(address: str) -> None:
    """Raise `OSError` if nobody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), REACH_S).close()

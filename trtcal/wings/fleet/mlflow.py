"""The history sent to an MLflow store: a run of ours becomes a run there, once.

An experiment is `trtcal/` and a run's name. Figures become metrics (`variant/figure`), digests
and versions parameters, the verdict tags; the report's page and data go along if they still lie in the
run's folder. A run is known by its report's digest and time, kept in a tag: to send it twice changes
nothing, and one that was broken off is sent anew. Two exports at once may send a run twice.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtcal.documents import read_json
from trtcal.errors import BackendError, InputError
from trtcal.runs.history import Entry
from trtcal.wings.fleet.costs import EPOCH
from trtcal.wings.fleet.prices import moment_of

IDENTITY = "trtcal.run"
ARTIFACTS = ("report.json", "report.html")
LONGEST_KEY, LONGEST_VALUE = 200, 500  # MLflow takes 250, and at least 500
METRICS_AT_ONCE, OTHERS_AT_ONCE = 500, 50  # MLflow takes 1000 and 100 in one request
PAGE = 1000
# Nothing goes anywhere else, and a server that is not there is given up after seconds, not minutes.
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}

Known = dict[str, tuple[str, bool]]
"""What a run is known by -> its id there, and whether it is whole."""


def send_to_mlflow(
    entries: Sequence[Entry], uri: str, progress: Callable[[int], None] = lambda done: None
) -> int:
    """Send the runs that are not in an MLflow store yet; return how many those were.

    `uri` is a server's address or a database (`sqlite:///file.db`). `BackendError` if MLflow is
    not installed or the store fails.
    """
    client = _client(uri)
    known: dict[str, tuple[str, Known]] = {}
    sent = 0
    try:
        for entry in entries:
            if entry.name not in known:
                experiment = _experiment(client, entry.name)
                known[entry.name] = experiment, _known(client, experiment)
            sent += _send_once(client, *known[entry.name], entry)
            progress(1)
    except Exception as error:  # a store raises whatever its own driver does
        raise BackendError(
            f"the MLflow store failed after {sent} runs: {error}",
            "check its address; runs that were sent stay there and are not sent again",
        ) from error
    return sent


def _client(uri: str) -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise BackendError(
            f"MLflow is not installed: {error}", "install it with pip install 'trtcal[mlflow]'"
        ) from error
    try:
        return MlflowClient(tracking_uri=uri)
    except Exception as error:  # as above
        raise BackendError(
            f"this MLflow store cannot be opened: {error}",
            "give the address of a server, or a database such as sqlite:///mlflow.db",
        ) from error


def _experiment(client: Any, name: str) -> str:
    title = f"trtcal/{_key(name)}"
    experiment = client.get_experiment_by_name(title)
    return str(experiment.experiment_id if experiment else client.create_experiment(title))


def _known(client: Any, experiment: str) -> Known:
    """Return the runs that are there."""
    known: Known = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        for run in page:
            if identity := run.data.tags.get(IDENTITY):
                known[identity] = run.info.run_id, run.info.status == "FINISHED"
        token = page.token
        if not token:
            return known


def _send_once(client: Any, experiment: str, known: Known, entry: Entry) -> bool:
    identity = f"{entry.report} {entry.made_at}"
    there, is_whole = known.get(identity, (None, False))
    if is_whole:
        return False
    if there:
        client.delete_run(there)
    known[identity] = _send(client, experiment, entry, identity), True
    return True


def _send(client: Any, experiment: str, entry: Entry, identity: str) -> str:
    """Make a run of an entry; only when all is there is it said to be finished."""
    moment = int((moment_of(entry.made_at) or EPOCH).timestamp() * 1000)
    tags = {IDENTITY: identity, "mlflow.runName": f"run {entry.number}", **_tags(entry)}
    run: str = client.create_run(experiment, start_time=moment, tags=tags).info.run_id
    for batch in _batches(entry, moment):
        client.log_batch(run, **batch)
    for path in _artifacts(entry):
        client.log_artifact(run, str(path))
    client.set_terminated(run, "FINISHED", end_time=moment)
    return run


def _tags(entry: Entry) -> dict[str, str]:
    plain = ("report", "verdict", "variant", "sentence", "command", "folder")
    values = {key: getattr(entry, key) for key in plain}
    values["folder"] = entry.folder and Path(entry.folder).name  # the others are this machine's own
    own = {f"trtcal.{key}": _value(value) for key, value in values.items() if value is not None}
    return own | {f"trtcal.tag.{_key(key)}": _value(value) for key, value in entry.tags.items()}


def _batches(entry: Entry, moment: int) -> Iterator[Mapping[str, Any]]:
    """Yield figures as metrics and digests as parameters, as many as one request may have."""
    from mlflow.entities import Metric, Param

    metrics = [
        Metric(f"{_key(variant)}/{_key(figure)}", value, moment, 0)
        for (variant, figure), value in entry.figures.items()
    ]
    params = [Param(_key(what), _value(digest)) for what, digest in entry.digests.items()]
    for start in range(0, len(metrics), METRICS_AT_ONCE):
        yield {"metrics": metrics[start : start + METRICS_AT_ONCE]}
    for start in range(0, len(params), OTHERS_AT_ONCE):
        yield {"params": params[start : start + OTHERS_AT_ONCE]}


def _key(name: str) -> str:
    """Return a name as MLflow takes it; a changed one ends in a digest of what it was."""
    plain = re.sub(r"[^a-zA-Z0-9_. -]", "_", name)[:LONGEST_KEY]
    if plain == name and not plain.startswith(".") and plain.strip():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain.strip(' .')}-{digest[:8]}"


def _value(value: object) -> str:
    """Return text that every store can keep."""
    return str(value).encode("utf-8", "backslashreplace").decode()[:LONGEST_VALUE]


def _artifacts(entry: Entry) -> list[Path]:
    """Return the report's files if the run's folder still holds this very report."""
    paths = [Path(entry.folder or "") / name for name in ARTIFACTS]
    try:
        document = read_json(paths[0]) if entry.folder else {}
    except InputError:
        return []
    measured = document.get("measured") if isinstance(document, dict) else None
    if not isinstance(measured, dict):
        return []
    is_same = (document.get("digest"), measured.get("made_at")) == (entry.report, entry.made_at)
    return [path for path in paths if is_same and path.is_file()]

"""Small run folders made up for the tests of the store, and moto's S3 server in a child process."""

import contextlib
import hashlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runs.runs import report
from trtcal.documents import digest_bytes, write_document
from trtcal.pipeline.job import all_outputs
from trtcal.reporting.document import REPORT_KIND, VERSION
from trtcal.wings.fleet.store.record import Record
from trtcal.wings.fleet.store.store import ArtifactStore
from trtcal.wings.fleet.store.transfer import Pushed, record_of_folder
from trtcal.wings.fleet.store.transfer import pull as pull_run
from trtcal.wings.fleet.store.transfer import push as push_run

SERVER = """
import logging, sys, threading
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
BUCKET = "artifacts"


def digest(text: str) -> str:
    """Return a digest that stands for something called so."""
    return digest_bytes(text.encode())


def contents(seed: object, size: int) -> bytes:
    """Return bytes that follow from a seed."""
    return hashlib.shake_256(str(seed).encode()).digest(size)


def write_run(folder: Path, number: int = 1, engines: int = 1, **facts: Any) -> Path:
    """Write a run; `facts`: those of `report`, `model`, `commit`, `cost`, `word` (the verdict)."""
    model, word = facts.pop("model", "sha256 of a model"), facts.pop("word", "SHIP")
    commit, cost = facts.pop("commit", None), facts.pop("cost", {})
    made = report(number, data=digest("evaluation"), **facts)
    made["comparison"]["rows"][0]["model"] = digest(model)
    made["comparison"]["rows"][1]["quantization"]["plan"] = digest("plan")
    made["calibrations"][0] |= {"dataset": digest("data"), "digest": digest("ranges")}
    made["measured"]["verdict"]["word"] = word
    made["measured"]["number"] = number
    names = [f"int8-{one}-cpu" for one in range(engines)]
    stages = [write_build(folder / "builds" / name, (number, name), name) for name in names]
    made |= {"kind": REPORT_KIND, "schema_version": VERSION, "cost": cost}
    stages.append({"output": "report.json", **write_document(folder / "report.json", made)})
    kept = [{"stage": "made", "output": one["output"], "digest": one["digest"]} for one in stages]
    configuration = {"digest": digest("configuration"), "commit": commit, "differs": False}
    inputs = {"model": digest(model), "calibration_data": digest("data")}
    run = {"stages": kept, "scripts": {}, "measured": {"configuration": configuration}}
    run |= {**inputs, "evaluation_data": digest("evaluation")}
    write_document(folder / "run.json", {"kind": "run", "schema_version": 1, **run})
    return folder


def write_build(folder: Path, seed: object, name: str) -> dict[str, Any]:
    """Write an engine, a log and a manifest; return the manifest."""
    folder.mkdir(parents=True)
    engine, log = contents(seed, 1000), contents(("log", seed), 500)
    (folder / "engine.onnx").write_bytes(engine)
    (folder / "build.log").write_bytes(log)
    body = {
        "backend": "onnxruntime",
        "backend_version": "1.32.0",
        "target": "cpu",
        "model": digest(f"quantized {name}"),
        "model_name": name.removesuffix("-cpu"),
        "quantization": {"method": "entropy", "calibration": digest("ranges")},
        "engine_file": "engine.onnx",
        "layers": [],
        "outcomes": [],
        "skipped": {},
        "measured": {"engine_digest": digest_bytes(engine), "log_digest": digest_bytes(log)},
    }
    document = {"kind": "build", "schema_version": 1, **body}
    sealed = write_document(folder / "build.json", document)
    return {"output": f"builds/{name}/build.json", **sealed}


def described(run: Path) -> Record:
    """Return a run as a store has it."""
    return record_of_folder(run, all_outputs())


def push(store: ArtifactStore, run: Path, **options: Any) -> Pushed:
    """Push a run."""
    return push_run(store, run, described(run), **options)


def pull(store: ArtifactStore, record: Record, folder: Path) -> int:
    """Pull a run."""
    return pull_run(store, record, folder, all_outputs())


def flip(path: Path, bit: int = 100) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server for the block, with `BUCKET` in it; yield its address."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            connection = http.client.HTTPConnection(address.removeprefix("http://"))
            connection.request("PUT", f"/{BUCKET}")
            connection.getresponse().close()
            connection.close()
            yield address
        finally:
            server.stdin.close()


def s3_environment(address: str) -> dict[str, str]:
    """Return the variables by which a process reaches the server."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-test",
        "AWS_REGION": "eu-central-1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

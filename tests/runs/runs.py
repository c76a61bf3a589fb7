"""Reports made up for the tests of the history."""

from typing import Any


def report(
    number: int,
    top1: float = 98.6,
    p50: float = 1.0,
    data: str = "sha256:data",
    name: str = "digits",
    variant: str = "int8",
) -> dict[str, Any]:
    """Return a report document with a reference and one variant; `number` tells it from others."""
    accuracy = {"top1": top1, "top1_drop": 98.6 - top1, "agreement": 99.0, "sqnr_db": 30.0}
    latency = {"p50_ms": p50, "p90_ms": p50, "p99_ms": p50, "speedup": 2.0 / p50}
    rows = [
        {"name": name, "model": "sha256:m", "accuracy": {"top1": 98.6}, "quantization": {}},
        {
            "name": variant,
            "model": "sha256:q",
            "accuracy": accuracy,
            "quantization": {"plan": "sha256:p"},
        },
    ]
    measured = {one["name"]: {"latency": latency, "size_bytes": 1000} for one in rows}
    verdict = {"word": "SHIP", "variant": variant, "sentence": f"{variant} is as good."}
    return {
        "digest": f"sha256:{number}",
        "trtcal": "0.1.0",
        "comparison": {"dataset": data, "rows": rows},
        "calibrations": [{"method": "percentile", "dataset": "sha256:cal", "digest": "sha256:c"}],
        "data_check": None,
        "optimizations": [],
        "builds": [],
        "measured": {
            "variants": measured,
            "builds": {},
            "verdict": verdict,
            "run": {"command": "trtcal run"},
            "packages": {"onnxruntime": "1.31.1", "tensorrt-rtx": None},
            "machine": {"cpus": 2},
            "made_at": f"2026-11-{1 + number % 28:02d}T10:00:00+00:00",
        },
    }


def timed_report(
    number: int,
    p50: float = 1.0,
    speedup: float = 2.0,
    version: str = "m",
    name: str = "digits",
    tags: dict[str, str] | None = None,
    monthly: float | None = None,
    gpu: str | None = None,
    share: float = 0.01,
) -> dict[str, Any]:
    """Return a report whose times have intervals; `share` is half of one, `version` the model."""
    made = report(number, p50=p50, name=name)
    made["comparison"]["rows"][0]["model"] = f"sha256:{version}"
    for variant, measured in made["measured"]["variants"].items():
        ratio = 1.0 if variant == name else speedup
        median = p50 * speedup / ratio
        measured["latency"] = {
            **measured["latency"],
            "batch": 32,
            "p50_ms": median,
            "p50_interval_ms": [median * (1 - share), median * (1 + share)],
            "speedup": ratio,
            "speedup_interval": [ratio * (1 - share), ratio * (1 + share)],
        }
    made["measured"]["machine"] = {"cpus": 2, "gpu": gpu, "timed_on": "GPU" if gpu else "CPU"}
    made["measured"]["failed_builds"] = {}
    if tags or monthly:
        plain = dict.fromkeys(("instance", "region"))
        cost = {"tags": tags or {}, "inferences_per_month": monthly, "pricing": "on-demand"}
        made["cost"] = {**plain, **cost}
    return made

"""Many runs and many projects: artifact store, costs, dashboard, MLflow, drift over devices."""

from trtcal.extensions import Command

COMMANDS = (
    Command(
        "history cost",
        "Show the cost of inferences by project or tag.",
        "trtcal.wings.fleet.cli.cost",
    ),
    Command(
        "history dashboard",
        "Write a static site of the figures over time.",
        "trtcal.wings.fleet.cli.dashboard",
    ),
    Command(
        "bundle drift",
        "Compare outputs of devices with a bundle's golden outputs.",
        "trtcal.wings.fleet.cli.drift",
    ),
    Command(
        "store",
        "Keep runs on disk or in S3, and find where an engine came from.",
        "trtcal.wings.fleet.cli.store",
        "Ship",
    ),
)

"""What changed, and where: checkpoints, bisection, fingerprints of graphs, TVM."""

from trtcal.extensions import Command

COMMANDS = (
    Command(
        "trace",
        "Show the output of each stage; find what breaks a limit.",
        "trtcal.wings.forensics.cli.trace",
        "Over time",
    ),
)

"""Training with quantization: a model with Q/DQ becomes a PyTorch module, and its result Q/DQ again."""

from trtcal.extensions import Command

COMMANDS = (
    Command(
        "export torch",
        "Write a PyTorch module that trains with our Q/DQ.",
        "trtcal.wings.training.cli.torch",
    ),
    Command(
        "import",
        "Put what PyTorch trained into a model with Q/DQ.",
        "trtcal.wings.training.cli.import_",
        "Quantize",
    ),
)

"""The network as a graph, with what is known of each node: a page of its own, or for other viewers."""

from trtcal.extensions import Command

COMMANDS = (
    Command(
        "graph",
        "Write a page that shows the network with what is known of each node.",
        "trtcal.wings.graph.cli.graph",
        "Build, and see what was built",
    ),
    Command(
        "export",
        "Show the figures of nodes in Model Explorer or Netron.",
        "trtcal.wings.graph.cli.export",
        "Build, and see what was built",
    ),
)

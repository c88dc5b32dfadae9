"""docs/methods/merf.md."""

from tables.cells import Cell, Table
from tables.names import NAMES, SMALL, published, scored

TABLES = {
    "merf": Table(
        heads=(
            "private data",
            "epsilon",
            "`merf`, seeds 0, 1, 2",
            "published, their epsilon unchecked but for DP-MERF's",
        ),
        rows=[
            (
                NAMES[data],
                f"{epsilon:g}",
                Cell(**scored("merf.jsonl", data=data, epsilon=epsilon, preset="default", settings={}), times=100),
                published(data, epsilon, "DPImageBench README", "DP-MERF", "DP-Kernel", "DP-GAN", "DPDM", "DP-FETA"),
            )
            for data, epsilon in SMALL
        ],
    )
}

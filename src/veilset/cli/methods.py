"""`veilset methods`: what there is."""

from veilset.cli.console import Console
from veilset.cli.options import AsJson


def methods(*, as_json: AsJson = False) -> None:
    """List the methods: guarantee, whether public data is needed, what is released, presets, the paper."""
    from veilset.methods import METHODS

    kinds = [METHODS.get(name) for name in METHODS]
    console = Console(as_json=as_json)
    if not as_json:
        rows = [
            [
                k.name,
                k.title,
                k.guarantee,
                "yes" if k.needs_public else "no",
                ", ".join(k.releases),
                ", ".join(k.presets),
                k.paper,
            ]
            for k in kinds
        ]
        console.table("Methods", ["name", "idea", "guarantee", "needs public", "releases", "presets", "paper"], rows)
    console.result(
        {
            "methods": [
                {
                    "name": k.name,
                    "title": k.title,
                    "guarantee": k.guarantee,
                    "needs_public": k.needs_public,
                    "releases": list(k.releases),
                    "paper": k.paper,
                    "presets": list(k.presets),
                }
                for k in kinds
            ]
        }
    )

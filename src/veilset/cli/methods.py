"""`veilset methods`: what there is."""

from veilset.cli.console import Console
from veilset.cli.options import AsJson


def methods(*, as_json: AsJson = False) -> None:
    """List the methods: guarantee, whether public data is needed, what is released, presets, the paper."""
    from veilset.methods import METHODS

    kinds = [METHODS.get(name) for name in METHODS]
    found = [
        {
            "name": kind.name,
            "title": kind.title,
            "guarantee": kind.guarantee,
            "needs_public": kind.needs_public,
            "releases": list(kind.releases),
            "paper": kind.paper,
            "claim_of_paper": kind.claim_of_paper,
            "presets": list(kind.presets),
        }
        for kind in kinds
    ]
    console = Console(as_json=as_json)
    if not as_json:
        for kind in kinds:
            console.say(f"{kind.name}: {kind.title}")
            needs = "needs public images" if kind.needs_public else "can do without public images"
            console.say(f"  guarantee {kind.guarantee}; {needs}; presets {', '.join(kind.presets)}")
            console.say(f"  releases {', '.join(kind.releases).replace('_', ' ')}")
            console.say(f"  {kind.paper}")
            console.say(f"  {kind.claim_of_paper}\n")
        console.say("What a run would spend: veilset plan --method NAME --records N --epsilon E")
    console.result({"methods": found})

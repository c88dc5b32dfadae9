"""Three hospitals train one generator together, and no image leaves any of them.

The server sends generated images. Each site judges them by its own X-rays and answers with noise that it drew and paid
for at home, within an epsilon of its own. Here all four are objects of one process; `veilset federate server` and
`veilset federate site` run the same code on machines of their own, over TLS.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import veilset as vs
from veilset.data.images import ImageSet
from veilset.pipeline.federated.coordinator import Coordinator
from veilset.pipeline.federated.site import Site

EPSILONS = {"north": 2.0, "south": 4.0, "coast": 8.0}
CLASSES = ("normal", "finding")
SMALL = {"steps": "20", "critics": "5", "points": "16", "warmup": "3", "pictures": "100", "width": "16"}


def draw_images(seed: int, count: int = 200) -> ImageSet:
    """Grey images with a bright spot where there is a finding; each hospital has its own."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:16, 0:16]
    labels = np.arange(count) % 2
    spot = 120 * np.exp(-((x - 8) ** 2 + (y - 8) ** 2) / 12)
    images = 80 + random.normal(0, 15, (count, 16, 16)) + labels[:, None, None] * spot
    return ImageSet(images.clip(0, 255).astype(np.uint8), labels, CLASSES)


def run(folder: Path) -> None:
    """Invite the sites, ask them at every step, and release what the generator has learnt."""
    server = Coordinator(SMALL, shape=(16, 16, 1), class_names=CLASSES)
    sites = {}
    for node, (name, epsilon) in enumerate(EPSILONS.items()):
        sites[node] = Site(name, vs.Vault(draw_images(node)), epsilon=epsilon, workspace=folder / name)
        server.welcome(node, sites[node].join(server.invitation()))  # the site has reserved its whole budget now
    while server.steps_done < server.steps:
        questions = server.queries(list(sites))
        server.take({node: site.answer(questions[node]) for node, site in sites.items()})
    check = vs.verify(server.release(100, folder).save(folder / "release"))
    check.raise_if_failed()
    for site in sites.values():
        print(f"{site.name} spent epsilon {site.certificate().epsilon:.2f} and has {site.steps_left} answers left")
        site.close()
    print(f"Verified: the joint release has epsilon {check.epsilon:.2f}, the largest of its sites.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # accounts of drawn images stay with them
        run(place)

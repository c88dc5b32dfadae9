"""Three hospitals make one release together, and no image leaves any of them.

Each hospital makes its key at home and asks to join. The server's keeper writes one agreement for all. Each site then
answers questions about its own X-rays, with noise and an epsilon of its own. Here all four are objects of one process;
`veilset federate server` and `veilset federate site` run the same code on machines of their own, over TLS.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import veilset as vs
from veilset.data.images import ImageSet
from veilset.pipeline.federated.admission import KEY, make_request
from veilset.pipeline.federated.agreement import Rule
from veilset.pipeline.federated.local import run_locally
from veilset.pipeline.federated.server import draw_agreement
from veilset.pipeline.federated.site import Site
from veilset.pipeline.job import Job

EPSILONS = {"north": 2.0, "south": 4.0, "coast": 8.0}


def draw_images(seed: int, count: int = 200) -> ImageSet:
    """Grey images with a bright spot where there is a finding; each hospital has its own."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 2
    y, x = np.mgrid[0:16, 0:16]
    spot = 120 * np.exp(-((x - 8) ** 2 + (y - 8) ** 2) / 12)
    images = 80 + random.normal(0, 15, (count, 16, 16)) + labels[:, None, None] * spot
    return ImageSet(images.clip(0, 255).astype(np.uint8), labels, ("normal", "finding"))


def run(folder: Path) -> None:
    """Ask to join, agree, answer, and release what all have learnt."""
    vaults = {name: vs.Vault(draw_images(seed)) for seed, name in enumerate(EPSILONS)}
    requests = [make_request(folder / n, v.facts, name=n, epsilon=EPSILONS[n], delta=None) for n, v in vaults.items()]
    job = Job(method="merf", epsilon=1.0, preset="smoke", samples=100)  # each site spends its own epsilon
    agreement = draw_agreement(requests, job, Rule(min_sites=2), None)
    sites = {
        name: Site(name, agreement, vault, key=(folder / name / KEY).read_bytes(), workspace=folder / name / "run")
        for name, vault in vaults.items()
    }
    release, server = run_locally(sites, folder)
    check = vs.verify(release.save(folder / "release"))
    check.raise_if_failed()
    for name, site in sites.items():
        print(f"{name} may spend epsilon {EPSILONS[name]:g}, and answered {len(site.answered)} of {server.rounds} sums")
    print(f"Verified: the joint release has epsilon {check.epsilon:.2f}, the largest of its sites.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # accounts of drawn images stay with them
        run(place)

"""docs/how_to/federated.md."""

from tables.cells import Cell, Table
from tables.names import scored

FILE = "federated.jsonl"
PLACES = (
    (1, "even", "one central run"),
    (4, "even", "4 sites, even"),
    (4, "skewed", "4 sites, classes apart"),
    (16, "even", "16 sites, even"),
    (16, "skewed", "16 sites, two classes each"),
)


def _row(method: str, sites: int, split: str, words: str) -> list[str | Cell]:
    where = {"method": method, "private": "mnist", "sites": sites, "split": split, "limit": None, "student": "convnet"}
    accuracies = [Cell(**scored(FILE, **where, epsilon=epsilon)) for epsilon in (1.0, 10.0)]
    return [f"`{method}`", words, *accuracies]


def _hospitals(method: str, sites: int, words: str) -> list[str | Cell]:
    where = {"method": method, "private": "chest_xray_64", "sites": sites, "split": "even", "samples": 2000}
    found = [Cell(**scored(FILE, **where, epsilon=e), value="balanced_accuracy") for e in (1.0, 10.0)]
    return [f"`{method}`", words, *found]


def _bytes(method: str, sites: int) -> list[str | Cell]:
    where = scored(FILE, method=method, private="mnist", sites=sites)
    names = ("rounds", "bytes_to_a_site", "bytes_from_a_site", "bytes_in_all")
    return [f"`{method}`", str(sites), *(Cell(**where, value=name, digits=0, show="range") for name in names)]


TABLES = {
    "federated": Table(
        heads=("method", "MNIST over", "epsilon 1 at each site, %", "epsilon 10 at each site, %"),
        rows=[_row(method, *place) for method in ("merf", "imgsyn", "sanitized_gan") for place in PLACES],
    ),
    "federated_hospitals": Table(
        heads=("method", "chest X-rays over", "epsilon 1 at each hospital, balanced %", "epsilon 10, balanced %"),
        rows=[
            _hospitals(method, *place)
            for method in ("merf", "imgsyn", "sanitized_gan")
            for place in ((1, "one hospital"), (4, "4 hospitals"))
        ],
    ),
    "federated_bytes": Table(
        heads=("method", "sites", "rounds", "bytes to a site", "bytes from a site", "bytes in all"),
        rows=[_bytes(method, sites) for method in ("merf", "sanitized_gan", "imgsyn") for sites in (4, 16)],
    ),
}

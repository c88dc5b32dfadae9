"""What can be chosen by name: searches, distances, repairs, draws. Nothing here loads torch, so no plan does."""

from importlib.util import find_spec
from typing import Literal

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name
from veilset.core.settings import RATE, Settings, setting
from veilset.models import NETWORKS
from veilset.models.features.weights import require_installed

SearchName = Literal["ff", "opt", "opt_a", "opt_b", "average"]
DistanceName = Literal["wavelets", "lite0", "lpips"]
Repair = Literal["replace", "linear", "spiked"]
Restore = Literal["none", "spread", "mean", "shift"]
Draws = Literal["chosen", "own", "gaussian"]


class SearchSettings(Settings):
    """One way to find latents: the paper's tuple (start, steps, rate, penalty)."""

    start: Literal["network", "average"] = setting(
        "network", "The inversion network's answer, or the middle of the latents."
    )
    steps: int = setting(0, "Of descent.", least=0)
    learning_rate: float = setting(0.1, "Of Adam, in coordinates of deviation 1.", **RATE)
    penalty: float = setting(
        0.0, "Weight of the mean square of the coordinates, against the distance per image.", least=0
    )


# FF and OPT are the paper's; it gives no numbers for its two penalties, so these are ours: a weak and a strong one.
SEARCHES: dict[SearchName, SearchSettings] = {
    "ff": SearchSettings(),
    "opt": SearchSettings(steps=500),
    "opt_a": SearchSettings(steps=100, penalty=0.02),
    "opt_b": SearchSettings(steps=100, penalty=0.1),
    "average": SearchSettings(start="average", steps=500, penalty=0.02),
}


class InversionTraining(Settings):
    """How the inversion network is trained."""

    network: str = setting("convnet", "Its name; any network that students may have.")
    steps: int = setting(2000, "At most so many; training ends when held-out samples stop improving.", least=1)
    batch: int = setting(64, "Generated images of a step.", least=1)
    learning_rate: float = setting(0.003, "Its peak.", **RATE)
    width: int = setting(32, "Of the network's first stage.", least=1)


def require_network(name: str) -> None:
    """Refuse an unknown network before any work is done; `module:function` is found when it is built."""
    if ":" not in name and name.partition("@")[0] not in NETWORKS:
        raise unknown_name("network", name, list(NETWORKS))


def require_distance(name: DistanceName) -> None:
    """Refuse LPIPS and published weights where they are not installed, before any work is done."""
    if name == "lite0":
        require_installed(name)
    if name == "lpips" and not all(find_spec(module) for module in ("lpips", "torchvision")):
        raise InputError(
            "distance=lpips needs the packages lpips and torchvision, which Veilset does not install: "
            "pip install lpips torchvision. distance=wavelets needs nothing."
        )

"""The attacks by name, in the order in which they are shown."""

from collections.abc import Sequence

from veilset.core.errors import InputError
from veilset.core.registry import Registry
from veilset.evaluate.attacks.base import Attack

_HERE = "veilset.evaluate.attacks"

ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "confidence": f"{_HERE}.blackbox:CONFIDENCE",
        "entropy": f"{_HERE}.blackbox:ENTROPY",
        "modified-entropy": f"{_HERE}.blackbox:MODIFIED_ENTROPY",
        "label-only": f"{_HERE}.blackbox:LABEL_ONLY",
        "learned-black-box": f"{_HERE}.learned:LEARNED_BLACK_BOX",
        "gradient-norm": f"{_HERE}.whitebox:GRADIENT_NORM",
        "white-box": f"{_HERE}.whitebox:WHITE_BOX",
        "lira": f"{_HERE}.shadows:LIRA",
        "lira-offline": f"{_HERE}.shadows:LIRA_OFFLINE",
        "rmia": f"{_HERE}.shadows:RMIA",
        "gan-leaks": f"{_HERE}.distances:GAN_LEAKS",
        "gan-leaks-calibrated": f"{_HERE}.distances:GAN_LEAKS_CALIBRATED",
        "nearest-neighbour": f"{_HERE}.distances:NEAREST_NEIGHBOUR",
        "latent-search": f"{_HERE}.inversion:LATENT_SEARCH",
        "inversion": f"{_HERE}.inversion:INVERSION",
    },
)

_SLOW = {"gradient-norm", "white-box", "lira", "lira-offline", "rmia", "latent-search"}
GROUPS = {"all": tuple(ATTACKS), "fast": tuple(name for name in ATTACKS if name not in _SLOW)}


def chosen_attacks(wanted: str | Sequence[str]) -> tuple[Attack, ...]:
    """The attacks of `all`, `fast` or a list of names, which text separates by commas; each once."""
    text = wanted if isinstance(wanted, str) else ",".join(wanted)
    names = list(GROUPS.get(text, ())) or [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"Expected all, fast or names of attacks, got {text!r}. Available: {', '.join(ATTACKS)}.")
    return tuple(ATTACKS.get(name) for name in dict.fromkeys(names))

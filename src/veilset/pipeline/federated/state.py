"""What the coordinator keeps on disk, so that a server that was killed goes on where it was.

It holds nothing private: answers that sites noised, and what was combined from them. Every file is written beside its
place and renamed, so it is there whole or not at all. A round is closed when its result is there; a closed round is
never asked again and never changes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.pipeline.federated.agreement import Agreement

_RESULTS, _ANSWERS, _STATEMENTS, _BANNED = "results", "answers", "statements", "banned.json"


class CoordinatorState:
    """The folder of one federation's server."""

    def __init__(self, folder: Path, agreement: Agreement) -> None:
        self._folder = folder
        for name in (_RESULTS, _ANSWERS, _STATEMENTS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        kept = folder / "agreement.json"
        if not kept.exists():
            write_whole(kept, agreement.to_bytes())
        if kept.read_bytes() != agreement.to_bytes():
            raise InputError(f"{folder} belongs to another agreement. Pass another --out, or remove that folder.")

    def result(self, number: int) -> Tensor | None:
        """What a closed round gave."""
        found = _read(self._folder / _RESULTS / f"{number}.safetensors")
        return None if found is None else found[0]

    def close(self, number: int, result: Tensor, sites: Mapping[str, int]) -> None:
        """Close a round; `sites` counts the answers of each that are in it."""
        note = {"sites": json.dumps(dict(sites))}
        write_whole(self._folder / _RESULTS / f"{number}.safetensors", save({"value": result.contiguous()}, note))
        for path in (self._folder / _ANSWERS).glob(f"{number}-*.safetensors"):
            path.unlink()

    def counted(self, number: int) -> dict[str, int]:
        """How many answers of each site are in a closed round."""
        found = _read(self._folder / _RESULTS / f"{number}.safetensors")
        counts: dict[str, int] = {} if found is None else json.loads(found[1]["sites"])
        return counts

    def answers(self, number: int) -> dict[str, Tensor]:
        """Answers to a round that is still open, by site."""
        found = {}
        for path in sorted((self._folder / _ANSWERS).glob(f"{number}-*.safetensors")):
            kept = _read(path)
            if kept is not None:
                found[path.stem.partition("-")[2]] = kept[0]
        return found

    def keep_answer(self, number: int, site: str, answer: Tensor) -> None:
        """Keep an answer before it counts."""
        write_whole(self._folder / _ANSWERS / f"{number}-{site}.safetensors", save({"value": answer.contiguous()}))

    @property
    def banned(self) -> dict[str, str]:
        """Sites that lost their place, and why."""
        path = self._folder / _BANNED
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def ban(self, site: str, why: str) -> None:
        """Take a site's place away, for good."""
        write_whole(self._folder / _BANNED, json.dumps(self.banned | {site: why}).encode())

    def statements(self) -> dict[str, Any]:
        """What sites signed at the end, by name."""
        places = sorted((self._folder / _STATEMENTS).glob("*.json"))
        return {path.stem: json.loads(path.read_bytes()) for path in places}

    def keep_statement(self, site: str, statement: Mapping[str, Any]) -> None:
        """Keep what a site signed at the end."""
        write_whole(self._folder / _STATEMENTS / f"{site}.json", json.dumps(dict(statement)).encode())


def _read(path: Path) -> tuple[Tensor, dict[str, str]] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("value"), file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise VeilsetError(f"{path} cannot be read: {error}. Put the file back from a copy of the folder.") from error

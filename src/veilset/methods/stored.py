"""A fitted method as plain JSON and tensors, so that another process or machine can draw from it.

Privacy: a `Fitted` follows from noisy results and public inputs alone, so storing it is post-processing. The form holds
that to account: it knows tensors, plain data, public facts, plans and the classes of methods, networks and teachers. A
vault, a session, private records or anything else in the object raises, and nothing is written. Public images are not
stored: their digest is, and who draws brings the same images.

Reading makes no calls but to the constructors of settings: objects are made empty and get their attributes, their
classes are those of the rooms below, and there is no pickle.
"""

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT
from veilset.core.records import Records
from veilset.core.registry import resolve
from veilset.core.settings import Settings
from veilset.methods.base import Context, Fitted
from veilset.privacy.vault import Public

_ROOMS = ("veilset.methods.", "veilset.models.", "veilset.teachers.", "veilset.training.", "torch.nn.modules.")
_SINGLE = {
    "veilset.core.progress:Silent",
    "veilset.privacy.budget:Budget",
    "veilset.privacy.events:Event",
    "veilset.privacy.vault:PublicFacts",
}
_FUNCTIONS = ("veilset.methods.", "veilset.models.", "veilset.teachers.", "torch.nn.functional")
_PLAIN = (bool, int, str, type(None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFit:
    """Objects by number, the first of them the fitted method, and the tensors that they name."""

    objects: list[Any]
    tensors: dict[str, Tensor]


def store(fitted: Fitted) -> StoredFit:
    """What a fitted method consists of; raises where that is more than noisy results and public things."""
    writer = _Writer()
    writer.of(fitted)
    return StoredFit(objects=writer.objects, tensors=writer.tensors)


def restore(stored: StoredFit, public: Records | None = None) -> Fitted:
    """The fitted method again; `public` are the public images of the run, where it used any."""
    try:
        fitted = _Reader(stored, public).made(0)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"Not a stored fit: {type(error).__name__}: {error}.") from error
    if not isinstance(fitted, Fitted):
        raise InputError("Not a stored fit: it holds nothing to draw from.")
    return fitted


def needs_public(stored: StoredFit) -> bool:
    """Whether public images have to be brought along."""
    return any(isinstance(found, dict) and found.get("is") == "public" for found in stored.objects)


def digest_of(records: Records) -> str:
    """What tells public images from others: a hash of all of them in order."""
    return hashlib.sha256(np.ascontiguousarray(records.digests()).tobytes()).hexdigest()


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _is_ours(name: str) -> bool:
    return name in _SINGLE or (name.startswith(_ROOMS) and "." not in name.partition(":")[2])


class _Writer:
    """Numbers every object once, so that what is shared stays shared."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # ids are only those of living objects

    def of(self, value: Any) -> Any:
        """The value itself where JSON has it, else {"number": n} of an object."""
        if type(value) in _PLAIN:
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if id(value) not in self._numbers:
            number = self._numbers[id(value)] = len(self.objects)
            self.objects.append(None)
            self._alive.append(value)
            self.objects[number] = self._described(value, number)
        return {"number": self._numbers[id(value)]}

    def _described(self, value: Any, number: int) -> dict[str, Any]:
        if isinstance(value, Tensor):
            return self._tensor(value, number)
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.tensors[str(number)] = torch.from_numpy(np.array(value))
            return {"is": "array"}
        if isinstance(value, np.generic):
            return {"is": "scalar", "type": value.dtype.str, "value": self.of(value.item())}
        if type(value) in (list, tuple, set, frozenset):
            items = sorted(value) if isinstance(value, set | frozenset) else value
            return {"is": type(value).__name__, "items": [self.of(item) for item in items]}
        if type(value) in (dict, OrderedDict):
            return {"is": "table", "items": [[self.of(key), self.of(item)] for key, item in value.items()]}
        if isinstance(value, torch.device):
            return {"is": "device", "name": str(value)}
        if isinstance(value, torch.dtype):
            return {"is": "dtype", "name": str(value).removeprefix("torch.")}
        if type(value) is threading.local:
            return {"is": "thread"}
        if isinstance(value, Public):
            return {"is": "public", "sha256": digest_of(value)}
        if isinstance(value, MethodType):
            return {"is": "bound", "of": self.of(value.__self__), "name": value.__name__}
        if isinstance(value, FunctionType):
            return self._function(value)
        return self._object(value)

    def _tensor(self, value: Tensor, number: int) -> dict[str, Any]:
        if type(value) not in (Tensor, nn.Parameter):
            raise VeilsetError(f"A fitted method holds a {type(value).__name__}, which is not to be stored.")
        plain = value.detach().cpu()
        last = plain.ndim == 4 and not plain.is_contiguous() and plain.is_contiguous(memory_format=torch.channels_last)
        self.tensors[str(number)] = plain.clone(memory_format=torch.contiguous_format)
        return {
            "is": "parameter" if isinstance(value, nn.Parameter) else "tensor",
            "device": str(value.device),
            "trains": value.requires_grad,
            "channels_last": last,
        }

    def _function(self, value: FunctionType) -> dict[str, Any]:
        name = _name_of(value)
        if not name.startswith(_FUNCTIONS) or "<" in name:
            raise VeilsetError(f"A fitted method holds the function {name}, which cannot be stored.")
        return {"is": "function", "name": name}

    def _object(self, value: Any) -> dict[str, Any]:
        name = _name_of(type(value))
        if isinstance(value, Context):
            value = dataclasses.replace(value, progress=SILENT, workspace=None)
            self._alive.append(value)
        if not _is_ours(name):
            raise VeilsetError(
                f"A fitted method holds a {name}, which is not to be stored, so it cannot be drawn from in units. "
                "Leave --sample-later out."
            )
        if isinstance(value, Settings):
            return {"is": "settings", "class": name, "attributes": self._items(dict(value))}
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)} if _has_slots(value) else vars(value)
        if isinstance(value, nn.Module):
            held = _with_own_hook_numbers(held)
        return {"is": "object", "class": name, "attributes": self._items(held)}

    def _items(self, held: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.of(item) for name, item in held.items() if not isinstance(item, Path)}


def _with_own_hook_numbers(held: Mapping[str, Any]) -> dict[str, Any]:
    """A network's attributes with hooks numbered by their order, below zero.

    torch numbers the hooks of a whole process: what else ran there would show, and in another process a new hook could
    take a stored one's number and so its place.
    """
    tables = {name: table for name, table in held.items() if "_hooks" in name and isinstance(table, dict)}
    numbers = sorted({key for table in tables.values() for key in table})
    return {
        name: type(item)((numbers.index(key) - len(numbers), hook) for key, hook in item.items())
        if name in tables
        else item
        for name, item in held.items()
    }


class _Reader:
    """Makes every object once."""

    def __init__(self, stored: StoredFit, public: Records | None) -> None:
        self._stored, self._public = stored, public
        self._made: dict[int, Any] = {}

    def value(self, data: Any) -> Any:
        """What `_Writer.of` wrote."""
        if type(data) in _PLAIN:
            return data
        return float.fromhex(data["float"]) if "float" in data else self.made(data["number"])

    def made(self, number: int) -> Any:
        """The object of this number."""
        if number not in self._made:
            data = self._stored.objects[number]
            kind = data["is"]
            if kind == "object":  # it may hold itself, so it is there before its attributes are
                self._made[number] = made = _empty(data["class"])
                for name, item in data["attributes"].items():
                    _set(made, name, self.value(item))
            else:
                self._made[number] = self._READERS[kind](self, data, number)
        return self._made[number]

    def _tensor(self, data: Any, number: int) -> Tensor:
        plain = self._stored.tensors[str(number)].clone()
        if data["channels_last"]:
            plain = plain.contiguous(memory_format=torch.channels_last)
        plain = plain.to(data["device"])
        if data["is"] == "parameter":
            return nn.Parameter(plain, requires_grad=data["trains"])
        return plain.requires_grad_(data["trains"])

    def _items(self, data: Any, _: int) -> Any:
        kinds: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return kinds[data["is"]](self.value(item) for item in data["items"])

    def _public_images(self, data: Any, _: int) -> Records:
        if self._public is None:
            raise InputError("This run was made with public images. Pass the same ones: --public")
        if digest_of(self._public) != data["sha256"]:
            raise InputError("These are not the public images of the run, byte for byte. Pass the same --public.")
        return self._public

    def _settings(self, data: Any, _: int) -> Any:
        kind = _class_of(data["class"])
        if not issubclass(kind, Settings):
            raise InputError(f"Not a stored fit: {data['class']} is no list of settings.")
        return kind(**{name: self.value(item) for name, item in data["attributes"].items()})

    def _dtype(self, data: Any, _: int) -> torch.dtype:
        found = getattr(torch, data["name"])
        if not isinstance(found, torch.dtype):  # torch also has functions that open files
            raise InputError(f"Not a stored fit: {data['name']!r} is no type of numbers.")
        return found

    def _function(self, data: Any, _: int) -> Any:
        name = data["name"]
        if not name.startswith(_FUNCTIONS):
            raise InputError(f"Not a stored fit: {name!r} is not to be called.")
        return _defined(name, FunctionType)

    _READERS: ClassVar[dict[str, Callable[["_Reader", Any, int], Any]]] = {
        "tensor": _tensor,
        "parameter": _tensor,
        "array": lambda self, _, number: self._stored.tensors[str(number)].numpy(),
        "scalar": lambda self, data, _: np.dtype(data["type"]).type(self.value(data["value"])),
        "list": _items,
        "tuple": _items,
        "set": _items,
        "frozenset": _items,
        "table": lambda self, data, _: {self.value(key): self.value(item) for key, item in data["items"]},
        "device": lambda _, data, __: torch.device(data["name"]),
        "dtype": _dtype,
        "thread": lambda *_: threading.local(),
        "public": _public_images,
        "bound": lambda self, data, _: MethodType(
            getattr(type(self.value(data["of"])), data["name"]), self._made[data["of"]["number"]]
        ),
        "function": _function,
        "settings": _settings,
    }


def _has_slots(value: Any) -> bool:
    return not hasattr(value, "__dict__")


def _class_of(name: str) -> Any:
    if not _is_ours(name):
        raise InputError(f"Not a stored fit: {name!r} is not one of our classes.")
    return _defined(name, type)


def _defined(name: str, kind: type) -> Any:
    """What a module of ours defines itself under this name, and not what it merely imported."""
    found = resolve(name)
    if not isinstance(found, kind) or _name_of(found) != name:
        raise InputError(f"Not a stored fit: {name!r} is not one of our own.")
    return found


def _empty(name: str) -> Any:
    kind = _class_of(name)
    return kind.__new__(kind)


def _set(made: Any, name: str, value: Any) -> None:
    if hasattr(made, "__dict__"):
        made.__dict__[name] = value
    else:
        object.__setattr__(made, name, value)

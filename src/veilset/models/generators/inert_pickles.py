"""Read a pickle as data: its opcodes build plain records, and nothing that it names is imported or called.

A pickle is a program that may call anything. This reader walks over its opcodes with the standard library's
disassembler and writes down what would have been called, as `Call` records; whoever wants tensors picks the few forms
that are known (models/generators/stylegan2_conversion.py) and leaves the rest alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pickletools import genops
from typing import Any, BinaryIO

from veilset.core.errors import InputError

_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set}
_FIXED_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


@dataclass(frozen=True)
class Name:
    """Something that a pickle would have imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Call:
    """Something that a pickle would have called, and what it would have given to the result."""

    function: Any
    arguments: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)


def read_inert(path: Path) -> Any:
    """The value of a pickle, with `Name` and `Call` in place of objects."""
    try:
        with path.open("rb") as file:
            return _walk(file)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError, OverflowError) as error:
        raise InputError(
            f"{path} is not a pickle that can be read as data: {type(error).__name__}: {error}."
        ) from error


def _walk(file: BinaryIO) -> Any:
    machine = _Machine()
    for opcode, argument, _ in genops(file):
        if opcode.name == "STOP":
            return machine.stack.pop()
        machine.take(opcode.name, argument)
    raise ValueError("it ends too early")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def take(self, name: str, argument: Any) -> None:
        """One opcode."""
        if name in ("PROTO", "FRAME"):
            return
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _FIXED_TUPLES:
            count = _FIXED_TUPLES[name]
            kept = self.stack[len(self.stack) - count :]
            del self.stack[len(self.stack) - count :]
            self.stack.append(tuple(kept))
        elif not (self._remember(name, argument) or self._call(name, argument) or self._collect(name)):
            raise ValueError(f"the opcode {name} has no place in plain data")

    def _remember(self, name: str, argument: Any) -> bool:
        if name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[int(argument)])
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name == "POP":
            self.stack.pop()
        elif name == "POP_MARK":
            self._since_mark()
        elif name == "DUP":
            self.stack.append(self.stack[-1])
        else:
            return False
        return True

    def _call(self, name: str, argument: Any) -> bool:
        """What a real reader would execute becomes a record."""
        if name == "GLOBAL":
            self.stack.append(Name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = self.stack.pop(), self.stack.pop()
            self.stack.append(Name(str(module), str(attribute)))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self.stack.pop(), self.stack.pop()
            self.stack.append(Call(function, arguments))
        elif name == "NEWOBJ_EX":
            named, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
            self.stack.append(Call(function, (arguments, named)))
        elif name == "BUILD":
            state = self.stack.pop()
            self.stack[-1].state = state
        else:
            return False
        return True

    def _collect(self, name: str) -> bool:
        if name in ("APPEND", "APPENDS", "ADDITEMS"):
            values = [self.stack.pop()] if name == "APPEND" else self._since_mark()
            place = self.stack[-1]
            if isinstance(place, set):
                place.update(values)
            else:
                (place.elements if isinstance(place, Call) else place).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = [self.stack.pop(), self.stack.pop()][::-1] if name == "SETITEM" else self._since_mark()
            place = self.stack[-1].items if isinstance(self.stack[-1], Call) else self.stack[-1]
            place.update(_pairs(values))
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            values = self._since_mark()
            self.stack.append({"TUPLE": tuple, "LIST": list, "FROZENSET": frozenset}[name](values))
        elif name == "DICT":
            self.stack.append(dict(_pairs(self._since_mark())))
        else:
            return False
        return True

    def _since_mark(self) -> list[Any]:
        place = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)

"""Packages that only some sources need, imported when such a source is opened."""

import importlib
from typing import Any

from veilset.core.errors import InputError


def require(module: str, extra: str = "data") -> Any:
    """Import a module, or say how to install what is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"This source needs {package}, which is not installed: pip install veilset[{extra}]"
        ) from error

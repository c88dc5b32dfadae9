"""What travels between server and sites: plain facts and tensors, in Flower's messages.

Flower's telemetry is turned off here, before Flower is imported.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from veilset.core.errors import InputError

LETTER = "query.letter"
POLL_SECONDS = 0.05


def pack(facts: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> RecordDict:
    """Plain facts and tensors as the content of a message. Nothing else has a form to travel in."""
    arrays = {name: Array(value.detach().cpu().numpy()) for name, value in (tensors or {}).items()}
    return RecordDict({"facts": ConfigRecord({"json": json.dumps(facts)}), "tensors": ArrayRecord(arrays)})


def unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `pack` put in; another form raises."""
    try:
        facts, arrays = content["facts"], content["tensors"]
        assert isinstance(facts, ConfigRecord)
        assert isinstance(arrays, ArrayRecord)
        plain = json.loads(str(facts["json"]))
        assert isinstance(plain, dict)
        return plain, {name: torch.from_numpy(np.array(array.numpy())) for name, array in arrays.items()}
    except Exception as error:  # whatever a hostile sender makes JSON and NumPy raise: memory, recursion, zip files
        raise InputError(f"A message is not of the form expected: {type(error).__name__} {error}.") from error

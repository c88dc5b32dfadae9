import sys
from pathlib import Path

import pytest
import torch

# Test folders are no packages; the slow reference lies beside these tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        yield

"""A torch dataset over memory maps, in a module of its own so that worker processes can import it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["Maps"]


class Maps(torch.utils.data.Dataset[Any]):
    """Rows of mapped files; a list of ids is a batch."""

    def __init__(self, files: dict[str, tuple[Path, str, tuple[int, ...]]]) -> None:
        self._maps = {name: np.memmap(path, dtype, mode="r", shape=shape) for name, (path, dtype, shape) in files.items()}

    def __len__(self) -> int:
        return len(next(iter(self._maps.values())))

    def __getitem__(self, ids: list[int]) -> dict[str, torch.Tensor]:
        rows = np.asarray(ids)
        return {name: torch.from_numpy(data[rows]) for name, data in self._maps.items()} | {"row": torch.from_numpy(rows)}

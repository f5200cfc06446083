"""Orders and cursors beside real PyTorch: ids become tensors without a copy, and a cursor lives in a checkpoint."""

import io

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.order import BlockShuffle, Cursor, Shard, Shuffle


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index * index


def test_ids_become_a_tensor_without_a_copy() -> None:
    ids = Shuffle(10**6, seed=1).indices(0, 0, 512)
    tensor = torch.from_numpy(ids)
    assert tensor.dtype == torch.int64
    assert tensor.data_ptr() == ids.ctypes.data


def test_ids_index_a_tensor_like_torch_own_permutation() -> None:
    data = torch.arange(5000) * 3
    ids = torch.from_numpy(Shuffle(5000, seed=4).indices(2, 0, 5000))
    assert torch.equal(data[ids].sort().values, data)


def test_cursor_survives_a_weights_only_checkpoint() -> None:
    cursor = Cursor(seed=2**64 - 1, epoch=3, position=12345)
    file = io.BytesIO()
    torch.save({"model": torch.zeros(3), "data": cursor.state_dict()}, file)
    file.seek(0)
    assert Cursor.from_state_dict(torch.load(file, weights_only=True)["data"]) == cursor


def test_an_order_drives_a_torch_data_loader() -> None:
    order = BlockShuffle(1000, block=50, window=4, lanes=2, seed=9)
    seen = []
    for rank in range(2):
        run = Shard(rank, 2).run(0, len(order))
        ids = order.indices(0, run.start, run.stop, run.step)
        seen += [batch.numpy() for batch in DataLoader(Squares(), sampler=ids.tolist(), batch_size=100)]
    assert sorted(np.concatenate(seen).tolist()) == [i * i for i in range(1000)]

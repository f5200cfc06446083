"""Files of penstock's, read by the packages that own their formats.

::

    python -m tests.golden.read_token_files write DIRECTORY     with penstock
    python -m tests.golden.read_token_files read DIRECTORY      with megatron-core, ai2-olmo-core, datatrove: compare

The two halves run in different environments; ``make token-packages`` runs both.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from tests.golden.make_token_files import DOCUMENTS, EOS


def write(directory: Path) -> None:
    """All documents in every format."""
    from penstock.source import write_documents

    directory.mkdir(parents=True, exist_ok=True)
    for name, documents in DOCUMENTS.items():
        is_wide = name == "wide"
        write_documents(documents, directory / f"{name}.idx", dtype="int32" if is_wide else "uint16")
        for suffix in (".ds", ".npy"):
            write_documents(documents, directory / f"{name}{suffix}", dtype="uint32" if is_wide else "uint16")


def read(directory: Path) -> None:
    """AssertionError if a package reads something else."""
    from datatrove.utils.dataset import DatatroveFileDataset
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from olmo_core.data import NumpyFSLDataset
    from olmo_core.data.utils import get_document_indices, load_array_slice

    for name, documents in DOCUMENTS.items():
        line, dtype = np.concatenate(documents), np.uint32 if name == "wide" else np.uint16
        bounds = np.cumsum([0, *map(len, documents)]).tolist()
        theirs = IndexedDataset(str(directory / name))
        assert [theirs[number].tolist() for number in range(len(theirs))] == [one.tolist() for one in documents]
        assert theirs.document_indices.tolist() == list(range(len(documents) + 1))
        spans = list(pairwise(bounds))
        assert get_document_indices(directory / f"{name}.npy") == spans
        found = [load_array_slice(directory / f"{name}.npy", low, high, dtype).tolist() for low, high in spans]
        assert found == [one.tolist() for one in documents]
        olmo = NumpyFSLDataset(
            str(directory / f"{name}.npy"),
            sequence_length=16,
            pad_token_id=0,
            eos_token_id=EOS,
            vocab_size=2**17,
            dtype=np.dtype(dtype).type,
        )
        assert [olmo[at]["input_ids"].tolist() for at in range(len(olmo))] == line[: len(line) // 16 * 16].reshape(-1, 16).tolist()
        trove = DatatroveFileDataset(str(directory / f"{name}.ds"), seq_len=15, token_size=np.dtype(dtype).itemsize)
        assert [trove[at]["input_ids"].tolist() for at in range(len(trove))] == line[: len(line) // 16 * 16].reshape(
            -1, 16
        ).tolist()


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))

"""Writes tests/golden/foreign/{megatron,olmo,datatrove,litdata}: small token files, written by the packages that own the formats.

::

    python -m tests.golden.make_token_files            say whether the files are what the packages write, change nothing
    python -m tests.golden.make_token_files --force    write them anew

It needs an environment with megatron-core, ai2-olmo-core, dolma, datatrove and litdata, of which only the writers are used:
``make token-packages`` makes one. The tests read the files, and compare with ``DOCUMENTS``.
"""

import argparse
import gzip
import importlib.util
import json
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DIRECTORY = Path(__file__).parent / "foreign"
EOS = 50256
LENGTHS = (7, 1, 30, 12, 64, 3, 0, 25, 5, 40)


def documents(seed: int, vocabulary: int, eos: int = EOS) -> list[np.ndarray]:
    """Tokens of documents of :data:`LENGTHS` and one more, the end of text."""
    rng = np.random.default_rng(seed)
    return [np.append(rng.integers(0, eos if vocabulary <= 2**16 else vocabulary, length), eos) for length in LENGTHS]


DOCUMENTS = {name: documents(seed, 2**17 if "wide" in name else 2**16) for seed, name in enumerate(("plain", "wide", "more"))}
MASKS = [np.arange(len(tokens)) % 3 > 0 for tokens in DOCUMENTS["plain"]]
SENTENCES = (2, 1, 3, 0, 4)
"""Sequences of each document, in megatron/sentences."""


def megatron(folder: Path) -> None:
    """Two datasets, both merged, and one whose documents have several sequences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    def build(name: str, dtype: Any, fill: Callable[[Any], None]) -> None:
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
        fill(builder)
        builder.finalize(str(folder / f"{name}.idx"))

    def one_by_one(name: str) -> Callable[[Any], None]:
        def fill(builder: Any) -> None:
            for tokens in DOCUMENTS[name]:
                builder.add_item(torch.tensor(tokens))
                builder.end_document()

        return fill

    def sentences(builder: Any) -> None:
        left = iter(DOCUMENTS["plain"])
        for count in SENTENCES:
            for _ in range(count):
                builder.add_item(torch.tensor(next(left)))
            builder.end_document()

    build("plain", np.uint16, one_by_one("plain"))
    build("more", np.uint16, one_by_one("more"))
    build("wide", np.int32, one_by_one("wide"))
    build("sentences", np.uint16, sentences)

    def merge(builder: Any) -> None:
        for name in ("plain", "more"):
            builder.add_index(str(folder / name))

    build("merged", np.uint16, merge)


def bare(name: str) -> None:
    """A package without what it imports, which would be half of the world; its modules are found as always."""
    found = importlib.util.find_spec(name)
    assert found is not None
    module = types.ModuleType(name)
    module.__path__ = list(found.submodule_search_locations or [])
    sys.modules[name] = module


def olmo(folder: Path) -> None:
    """An array and its table by dolma, and one whose table olmo-core makes from the ends of texts."""
    for package in ("dolma", "dolma.core", "dolma.tokenizer"):
        bare(package)
    from dolma.tokenizer.data_types import TokenizerOutput
    from dolma.tokenizer.memmap_writer import MemmapWriter
    from olmo_core.data.utils import write_document_indices

    for name, dtype in (("plain", np.uint16), ("more", np.uint16)):
        with MemmapWriter(str(folder / f"{name}.npy"), dtype=np.dtype(dtype), max_tokens=1000) as writer:
            for number, tokens in enumerate(DOCUMENTS[name]):
                assert writer.write(TokenizerOutput.from_tokens(f"{name}-{number}", "corpus.jsonl.gz", number, tokens.tolist()))
    path = folder / "wide.npy"
    tokens = np.concatenate(DOCUMENTS["wide"]).astype(np.uint32)
    np.memmap(path, np.uint32, "w+", shape=tokens.shape)[:] = tokens
    write_document_indices(path, dtype=np.uint32, eos_token_id=EOS)


def datatrove(folder: Path) -> None:
    """With everything, with tokens of four bytes, and without an index."""
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    def write(name: str, source: str, masks: list[np.ndarray] | None = None, **options: Any) -> None:
        made = TokenizedFile(str(folder), name, tokenizer_name_or_path="gpt2", save_loss_metadata=masks is not None, **options)
        for number, tokens in enumerate(DOCUMENTS[source]):
            made.write(tokens.tolist(), None if masks is None else masks[number])
        made.close()

    write("masked.ds", "plain", MASKS, save_final_metadata=True)
    write("plain.ds", "plain")
    write("wide.ds", "wide", token_size=4, save_final_metadata=True)
    write("bare.ds", "more", save_index=False, save_final_metadata=True)


def litdata(folder: Path) -> None:
    """Chunks of tensors, and of arrays."""
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    for name, convert in (("wide", lambda one: torch.tensor(one, dtype=torch.int32)), ("plain", lambda one: one.astype(np.uint16))):
        writer = BinaryWriter(str(folder / name), chunk_bytes=400, item_loader=TokensLoader())
        for number, tokens in enumerate(DOCUMENTS[name]):
            writer[number] = convert(tokens)
        writer.done()
        writer.merge()


WRITERS = {"megatron": megatron, "olmo": olmo, "datatrove": datatrove, "litdata": litdata}


def content(path: Path) -> bytes:
    """The bytes of a file without the time when it was written."""
    if path.suffix == ".json":
        return json.dumps(json.loads(path.read_text()) | {"updated_at": ""}).encode()
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def compare(writers: Mapping[str, Callable[[Path], None]]) -> None:
    """The command line: compare what packages write with the files that are there, or write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--force", action="store_true")
    force = parser.parse_args().force
    for name, write in writers.items():
        with tempfile.TemporaryDirectory() as place:
            write(Path(place))
            made = {str(path.relative_to(place)): content(path) for path in Path(place).rglob("*") if path.is_file()}
            there = {str(path.relative_to(DIRECTORY / name)): path for path in (DIRECTORY / name).rglob("*") if path.is_file()}
            if force:
                shutil.rmtree(DIRECTORY / name, ignore_errors=True)
                shutil.copytree(place, DIRECTORY / name)
            elif made != {path: content(file) for path, file in there.items()}:
                sys.exit(f"{DIRECTORY / name} differs from what the package writes")


if __name__ == "__main__":
    compare(WRITERS)

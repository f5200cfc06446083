"""The operations that cases are made of, and which of them cannot meet in one case.

Streams of one mixture may differ in source, order and bans, so most operations meet there.
"""

OPERATIONS = {
    "local": "files and arrays of this machine",
    "remote": "the same at a URL",
    "format array": "arrays in memory",
    "format store": "a store",
    "format npy": ".npy",
    "format collection": "a collection of .npy",
    "format parquet": "Parquet with missing values",
    "format nullable_store": "a store with missing values",
    "format tokens": ".rox",
    "format nanogpt": ".bin of nanoGPT",
    "format megatron": ".idx and .bin of Megatron",
    "format olmo": ".npy of OLMo, with .csv.gz",
    "format datatrove": ".ds of datatrove",
    "format litdata": "token chunks of LitData",
    "format masked_datatrove": ".ds of datatrove, with .loss",
    "format masked_olmo": ".npy of OLMo, with label masks",
    "format masked_store": "a store of ragged arrays with loss masks",
    "format text": "texts in memory",
    "format ragged": "a store of ragged arrays",
    "format documents": "Parquet with texts and ragged arrays",
    "format picture": "a store of encoded pictures",
    "format picture_parquet": "Parquet with encoded pictures",
    "format nullable_picture": "a store of pictures, some of which are missing",
    "format broken_picture": "a store of pictures, one of which cannot be decoded",
    "missing values": "fields that are nullable",
    "select": "source.select",
    "pick": "source.pick",
    "dict": "open({...}) of sources",
    "list": "open([...]) of sources",
    "map": "source.map",
    "unreadable": "a source with records that cannot be read",
    "order in_order": "stream in order",
    "order shuffle": "shuffled, globally unless the source is read in blocks",
    "order block shuffle": "shuffled with block, window or lanes",
    "order sample": "drawn with replacement",
    "order weighted": "drawn with replacement, by weight",
    "order slide": "windows",
    "order design": "a designed sample",
    "buckets": "records of similar length in one batch",
    "images": "pictures, decoded",
    "without": "bans on records",
    "without behind sequences": "bans on a stream of sequences",
    "without in mix": "bans on a mixture",
    "token sequences": "sequences of tokens in pages",
    "document sequences": "sequences of documents",
    "separator": "sequences with a separator",
    "loss mask": "sequences and packs with the loss masks of their tokens",
    "documents": "sequences with segment and position",
    "page": "sequences with a page size",
    "token packs": "packed documents of token files",
    "document packs": "packed texts and ragged arrays",
    "split fit": "documents are cut where they do not fit",
    "split always": "documents are cut where sequences end",
    "split never": "whole documents",
    "added tokens": "packs with BOS or EOS",
    "labels": "packs with labels",
    "multiple_of": "packs whose pieces are aligned",
    "cu_seqlens": "packs with the bounds of their documents",
    "without behind packs": "bans on packed documents",
    "mix first_exhausted": "a mixture by its stop",
    "mix all_exhausted": "a mixture by its stop",
    "mix all_exhausted_without_replacement": "a mixture by its stop",
    "mix forever": "a mixture by its stop",
    "mix in mix": "a mixture of mixtures",
    "mix batch_size": "a mixture that names the batch size",
    "weights": "a mixture with weights",
    "weights by step": "a mixture whose weights change",
    "weights by tokens": "a mixture whose weights are shares of tokens, or of elements of a field",
    "temperature": "a mixture by the sizes of its streams, tempered",
    "caps": "a mixture with max_epochs",
    "amendments": "a mixture that changes from a step on",
    "added streams": "a mixture that gets more streams from a step on",
    "unit batch": "a mixture of whole batches",
    "tail keep": "a loader's tail",
    "tail drop": "a loader's tail",
    "tail pad": "a loader's tail",
    "tail wrap": "a loader's tail",
    "phases": "a curriculum",
    "phase weights": "a curriculum with weights",
    "phase epochs": "a curriculum in epochs",
    "ranks": "several ranks",
    "threads 0": "reading when asked",
    "threads 2": "reading ahead",
    "ids": "ids=",
    "transform": "transform=",
    "on_error skip": 'on_error="skip"',
    "balance": "dealt to ranks by a field",
    "balance by lengths": "dealt to ranks by the lengths of documents",
    "micro-batches": "dealt to micro-batches of ranks",
    "batch_tokens": "the batch of a rank is one packed sequence",
    "restart": "restart=True",
    "forever": "loader.forever()",
    "seek": "loader.seek",
    "resume": "a state, loaded",
    "resume chain": "two states, one after the other",
    "resume world": "a state, loaded by another number of ranks",
    "resume size": "a state, loaded with another batch size",
    "resume tail": "a state, loaded with another tail",
    "resume amended": "a state of the mixture without an amendment",
}

SEQUENCES = {"token sequences", "document sequences", "separator", "documents", "page", "without behind sequences"}
PACKS = {
    "token packs",
    "document packs",
    "split fit",
    "split always",
    "split never",
    "added tokens",
    "labels",
    "multiple_of",
    "cu_seqlens",
    "batch_tokens",
    "without behind packs",
}
PAGES = {"token sequences", "page"}
BALANCE = {"balance", "balance by lengths", "micro-batches"}
PHASES = {"phases", "phase weights", "phase epochs"}
ORDERS = {name for name in OPERATIONS if name.startswith("order ")}
NUMBERS = {"format array", "format store", "format parquet", "format nullable_store"}
DOCUMENTED = {"format megatron", "format olmo", "format datatrove", "format litdata"}
MASKED = {"format masked_datatrove", "format masked_olmo", "format masked_store"}
UNMASKED = {"format tokens", "format nanogpt", "format ragged", "format documents"} | DOCUMENTED
RAGGED = UNMASKED | MASKED
PLAIN = {"format collection"}
TEXT = {"format text"}
PICTURES = {"format picture", "format picture_parquet", "format nullable_picture", "format broken_picture", "images"}

Pair = tuple[str, set[str], set[str]]
CANNOT_MEET: tuple[Pair, ...] = (
    ("a sequence is not replaced by another", {"on_error skip", "unreadable"}, SEQUENCES | PACKS),
    ("sequences have no windows and no designs", {"order slide", "order design"}, SEQUENCES | PACKS),
    ("weights are of records", {"order weighted"}, SEQUENCES | PACKS),
    ("packs draw no document twice", {"order sample"}, PACKS),
    ("the streams of a case are packed, or none is", PACKS, SEQUENCES - {"separator"}),
    ("only designs have weights, so that they are mixed with designs", {"order design"}, ORDERS - {"order design"}),
    ("a mixture has one kind of fields", NUMBERS, RAGGED | PLAIN | TEXT),
    ("a mixture has one kind of fields", PLAIN, RAGGED | TEXT | {"missing values"}),
    ("a mixture has one kind of fields", TEXT, RAGGED - {"format documents"}),
    ("a mixture has one kind of fields", {"format documents", "missing values"}, MASKED),
    ("only these formats have loss masks", {"loss mask"}, UNMASKED | NUMBERS | PLAIN | TEXT | {"pick", "missing values", "map"}),
    ("a mixture has one kind of fields", MASKED, UNMASKED),
    ("a mixture has one kind of fields", PICTURES, NUMBERS | RAGGED | PLAIN | TEXT),
    ("pictures are no tokens", PICTURES, SEQUENCES | PACKS | {"loss mask"}),
    ("sequences all have one length", BALANCE, SEQUENCES - {"separator"}),
    ("packs are balanced by lengths", {"balance"}, PACKS | {"separator"}),
    ("records of fixed fields have no lengths", {"balance by lengths"}, NUMBERS | PLAIN | PICTURES),
    ("buckets are of records", {"buckets"}, SEQUENCES | PACKS | {"loss mask"}),
    ("buckets have every record once", {"buckets"}, {"order sample", "order weighted", "order slide", "order design"}),
    ("records of fixed fields have no lengths", {"buckets"}, PLAIN),
    ("buckets are for batches of one size", {"buckets"}, PHASES),
    ("numbers are no tokens", PLAIN, SEQUENCES | PACKS),
    (
        "token blocks within other sources are documents",
        PAGES | {"token packs"},
        NUMBERS | PLAIN | TEXT | {"format npy", "dict", "map"},
    ),
    ("the functions of the cases map numbers and texts", {"map"}, RAGGED | PLAIN | PICTURES),
    ("a mixture that names the batch size has only that one", {"mix batch_size"}, {"resume size"}),
    ("the order of such a mixture depends on the batch size", {"weights by step", "unit batch"}, {"resume size"}),
    ("the batch size of phases is theirs", PHASES, {"resume size", "weights by step"}),
)
"""Why two operations, one of each set, are not right together in one case: refused, or without meaning."""


def may_meet(one: str, other: str) -> bool:
    """Whether two operations may be right together in one case."""
    return not any((one in first and other in second) or (other in first and one in second) for _, first, second in CANNOT_MEET)

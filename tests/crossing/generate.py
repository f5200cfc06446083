"""Cases by lot. A case follows from its seed alone."""

import random
from dataclasses import replace
from typing import Any

from tests.crossing.case import Case, Leg
from tests.crossing.data import KNOWN
from tests.crossing.model import (
    PICTURES,
    Amended,
    Bans,
    Mix,
    Ordered,
    Packs,
    Pictures,
    Records,
    Sequences,
    Stream,
    Table,
    aligned,
    concatenated,
    faulty,
    leaf,
    leaves,
    mapped,
    pick,
    select,
    varying,
)

from penstock import Phase

FAMILIES = {
    "value": ("array", "store", "remote_store"),
    "plain": ("npy", "remote_npy", "collection"),
    "nullable": ("parquet", "remote_parquet", "nullable_store"),
    "tokens": ("tokens", "remote_tokens", "nanogpt", "remote_nanogpt"),
    "token files": tuple(f"{at}{name}" for name in ("megatron", "olmo", "datatrove", "litdata") for at in ("", "remote_")),
    "masked": tuple(f"{at}masked_{name}" for name in ("datatrove", "olmo", "store") for at in ("", "remote_")),
    "text": ("text",),
    "ragged": ("ragged", "remote_ragged"),
    "both": ("documents", "remote_documents"),
    "pictures": ("picture", "remote_picture", "picture_parquet", "nullable_picture", "broken_picture"),
}
STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "forever")
TAILS = ("keep", "drop", "pad", "wrap")


def _names(family: str) -> list[str]:
    return [name for name in KNOWN if name.rstrip("0123456789") in FAMILIES[family]]


NAMES_OF = {family: _names(family) for family in FAMILIES}


class Lot:
    """Draws the parts of one case."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)

    def one(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def case(self) -> Case:
        family = self.one(
            *("value", "value", "plain", "nullable", "nullable"),
            *("tokens", "tokens", "tokens", "token files", "token files", "masked", "text", "ragged", "both"),
        )
        if random.Random(f"pictures {self.seed}").random() < 0.08:  # apart, so that all other cases are what they were
            family = "pictures"
        has_tokens = family not in ("value", "plain", "nullable", "pictures")
        sequential = family != "pictures" and self.happens(0.8 if has_tokens else 0.1 if family != "plain" else 0.02)
        self.recipe = self._recipe(family, sequential)
        self.pack_chance = random.Random(f"packs {self.seed}")  # apart, so that cases without packs are what they were
        self.weight_chance = random.Random(f"weights {self.seed}")
        self.is_packed = sequential and self.pack_chance.random() < 0.35
        self.size = self.one(1, 2, 3, 4, 4, 5, 6, 8)
        self.needs_ragged = (not sequential or self.recipe["change"] != "none") and self.happens(0.97)
        self.is_remote = self.happens(0.05)  # slow, so not often
        stream = self.mixture(0) if self.happens(0.45) else self.single()
        stream = self.bucketed(stream)
        legs = self.flattened(stream, self.balanced(stream, self.legs(stream)))
        return self.amended(Case(self.seed, self.planned(stream), legs))

    # Streams

    def _recipe(self, family: str, sequential: bool) -> dict[str, Any]:
        """What all streams of a case have in common, so that they can be mixed."""
        change = "none"
        if self.happens(0.01 if sequential and family == "tokens" else 0.3):
            change = {
                "value": self.one("map", "dict", "map dict") if sequential else self.one("pick", "map", "dict", "map dict"),
                "plain": "dict",
                "nullable": self.one("map", "dict") if sequential else self.one("map", "pick", "dict", "map dict"),
                "text": self.one("map", "dict"),
                "both": self.one("pick", "dict"),
                "tokens": self.one("pick", "dict"),
                "token files": self.one("pick", "dict"),
                "masked": self.one("dict", "dict", "pick"),
                "ragged": "dict",
                "pictures": self.one("dict", "pick"),
            }[family]
        separator = self.one(None, 0, 0, [0, 1], 100) if "token" in family else self.one(None, 0, 97, [98, 99])
        if separator is not None and self.happens(0.02):
            separator = 70_000
        length = self.one(1, 2, 3, 4, 5, 7, 8, 11, 16, 20)
        return {
            "family": family,
            "sequential": sequential,
            "change": change,
            "design": not sequential and self.happens(0.12),
            "length": length,
            "separator": separator,
            "documents": self.happens(0.5),
            "page": self.one(1, 2, 3, 5, 8, 16, 40) if self.happens(0.25) else None,
            "field": self.one("text", "ids"),
            "mask": self.happens(0.6 if family == "masked" else 0.02),
        }

    def single(self) -> Stream:
        recipe = self.recipe
        table = self.table()
        if recipe["family"] == "pictures":
            image = next(name for name, form in table.forms.items() if form.kind == "bytes")
            how = tuple(PICTURES)[recipe["length"] % len(PICTURES)]
            ordered = self.ordered(table, design=recipe["design"])
            return Pictures(table, ordered, self.bans(table), None, image, how, self.happens(0.5))
        if not recipe["sequential"]:
            return Records(table, self.ordered(table, design=recipe["design"]), self.bans(table))
        records = Records(table, self.ordered(table, design=self.happens(0.01)), self.bans(table))
        ragged = [name for name, form in table.forms.items() if form.kind != "fixed"]
        has_pages = table.line is not None
        made = Sequences(
            records,
            recipe["length"],
            field=recipe["field"]
            if recipe["field"] in ragged
            else ragged[0]
            if (len(ragged) > 1 and (recipe["family"] != "masked" or self.happens(0.5))) or (ragged and self.happens(0.2))
            else None,
            separator=recipe["separator"],
            documents=recipe["documents"]
            and (not has_pages or table.has_documents or recipe["separator"] is not None or self.happens(0.05)),
            page=recipe["page"] if has_pages or self.happens(0.03) else None,
            bans=self.bans(table, 0.2),
            mask=recipe["mask"],
        )
        return self.packed(made) if self.is_packed else replace(made, bans=_of_documents(made, made.bans))

    def packed(self, stream: Sequences) -> Packs:
        """The same documents, packed."""
        chance, recipe = self.pack_chance, self.recipe
        has_pages, knows = stream.table.line is not None, stream.table.has_documents
        separator = (recipe["separator"] or 0) if has_pages and chance.random() < (0.25 if knows else 0.98) else None
        are_records = not has_pages or (knows and separator is None)
        records = replace(stream.records, bans=() if not are_records and chance.random() < 0.97 else stream.records.bans)
        given = dict(records.ordered.options)
        if given.get("lanes", 1) > 1 and chance.random() < 0.95:
            records = replace(records, ordered=Ordered("shuffle", tuple((k, v) for k, v in given.items() if k != "lanes")))
        if records.ordered.method == "sample" and chance.random() < 0.9:
            records = replace(records, ordered=Ordered("shuffle", records.ordered.options))
        split = chance.choice(["fit", "fit", "always", "never"])
        packs = Packs(
            records,
            recipe["length"],
            field=None if has_pages else stream.field,
            separator=separator,
            documents=recipe["documents"],
            mask=recipe["mask"],
            labels=recipe["length"] % 3 != 1,
            window=chance.choice([1, 2, 4, 9, 30]),
            split=split,
            long=chance.choice(["error", "truncate", "truncate", "drop"]) if split == "never" else "error",
            pad=chance.choice([0, 0, 9]),
            bos=chance.choice([None, None, 5]),
            eos=chance.choice([None, 6]),
            first_segment=chance.choice([0, 0, 1]),
            multiple_of=chance.choice([1, 1, 2]) if recipe["length"] % 2 == 0 else 1,
            bounds=random.Random(f"bounds {self.seed}").random() < 0.4,
        )
        return replace(packs, bans=_of_documents(packs, stream.bans))

    def table(self) -> Table:
        family = self.recipe["family"]
        if self.recipe["sequential"] and self.recipe["change"] == "none" and family in ("tokens", "token files", "ragged"):
            family = self.one(family, family, "tokens", "token files", "ragged")  # sequences of all can be mixed
        if self.recipe["change"] == "none" and family in ("ragged", "text") and self.happens(0.6 if self.is_remote else 0.2):
            table = pick(self._leaf("both"), ["ids" if family == "ragged" else "text"])  # the same field in another format
            return self.selected(table)
        if self.recipe["change"] == "map" and family in ("value", "nullable") and self.happens(0.2):
            family = self.one("value", "nullable")
        is_whole = family == "tokens" and self.recipe["sequential"] and self.happens(0.98)
        is_whole |= family in ("token files", "masked") and self.recipe["sequential"] and self.happens(0.7)
        is_joined, is_selected = not is_whole and self.happens(0.15), not is_whole and self.happens(0.2)
        kept, self.needs_ragged = self.needs_ragged, self.needs_ragged or ((is_joined or is_selected) and self.happens(0.97))
        table = self.changed(self._leaf(family))
        if is_joined:
            other = self.changed(self._leaf(family))
            table = concatenated([table, other] if self.happens(0.7) else [other, table, other])
        self.needs_ragged = kept
        return self.selected(table, is_selected)

    def selected(self, table: Table, is_selected: bool = False) -> Table:
        """Some of the records, of which some cannot be read."""
        if is_selected and table.length:
            table = select(table, self.key(table.length))
        if self.happens(0.12) and table.length > 1 and not self.recipe["sequential"]:
            table = faulty(
                table, set(self.chance.sample(range(table.length), self.one(1, 1, 2, max(1, table.length // 2)) % table.length))
            )
        return table

    def _leaf(self, family: str) -> Table:
        names = [name for name in NAMES_OF[family] if self.is_remote or not KNOWN[name].is_remote]
        if family == "tokens" and self.needs_ragged:
            names = [name for name in names if KNOWN[name].forms["tokens"].kind == "ragged"]
        name = self.chance.choice(names)
        while KNOWN[name].length < 2 and self.happens(0.7):
            name = self.chance.choice(names)
        return leaf(name)

    def changed(self, table: Table) -> Table:
        """The table after the change of fields that all of the case share."""
        match self.recipe["change"], self.recipe["family"]:
            case "map", ("value" | "nullable") if self.recipe["length"] % 2:
                return mapped(pick(table, ["name", "x"]))
            case "map", _:
                return mapped(table)
            case "pick", "pictures":
                return pick(table, ["image"])
            case "dict", "pictures":
                return aligned({"t": table, "n": select(leaf("npy60"), slice(0, table.length))})
            case "pick", "both":
                return pick(table, [self.recipe["field"]])
            case "pick", "tokens" | "token files" | "masked":
                return pick(table, ["tokens"])
            case "pick", _:
                return pick(table, ["name", "x"] if self.recipe["length"] % 2 else ["x"])
            case "map dict", _:
                return aligned({"a": mapped(table), "b": select(leaf("npy60"), slice(0, table.length))})
            case "dict", _:
                if not self.recipe["sequential"] and self.recipe["length"] % 2:
                    return aligned({"a": table, "b": pick(table, [next(iter(table.forms))])})
                return aligned({"t": table, "n": select(leaf("npy60"), slice(0, table.length))})
        return table

    def key(self, n: int) -> Any:
        kind = self.one("slice", "slice", "list", "mask")
        if kind == "slice":
            return self.one(slice(0, n, 2), slice(n // 3, None), slice(None, None, -1), slice(1, -1), slice(0, max(1, n - 2)))
        if kind == "list":
            return [self.chance.randrange(n) for _ in range(self.one(1, 3, n))]
        return [self.happens(0.6) for _ in range(n)]

    def ordered(self, table: Table, *, design: bool = False) -> Ordered:
        seed = self.chance.randrange(1000)
        n = max(1, table.length)
        if design:
            extra = self.one(
                {"size": self.one(1, n // 2 or 1, n)},
                {"fraction": self.one(0.25, 0.5, 1.0)},
                {"size": self.one(1, n // 2 or 1), "strata": self.one(1, 2, 5)},
                {"size": self.one(1, n // 2 or 1), "masses": tuple(float(i % 4) for i in range(table.length))},
            )
            return Ordered("design", tuple(({"seed": seed} | extra).items()))
        sequential = self.recipe["sequential"]
        method = self.one("in_order", "shuffle", "shuffle", "shuffle", "blocks", "blocks", "sample", "slide")
        if sequential and method in ("sample", "slide") and (method == "slide" or table.line is None) and self.happens(0.9):
            method = "shuffle"
        if method == "in_order":
            return Ordered("in_order")
        if method == "slide":
            return Ordered(
                "slide", (("window", self.one(1, 2, 3)),) + ((("stride", self.one(1, 2, 4)),) if self.happens(0.5) else ())
            )
        if method == "sample":
            return self.weighted(table, seed) or Ordered("sample", (("seed", seed),))
        options: dict[str, Any] = {"seed": seed}
        if method == "blocks":
            options |= {"block": self.one(1, 2, 3, 5, 9)} if self.happens(0.8) else {}
            options |= {"window": self.one(1, 2, 4)} if self.happens(0.6) else {}
            options |= {"lanes": self.one(2, 3, 4)} if self.happens(0.4) or len(options) == 1 else {}
        return Ordered("shuffle", tuple(options.items()))

    def weighted(self, table: Table, seed: int) -> Ordered | None:
        """Drawn by weights, in half of the cases that draw, and in few of sequences, which refuse it."""
        chance = self.weight_chance
        if table.length == 0 or chance.random() > (0.04 if self.recipe["sequential"] else 0.5):
            return None
        weights = [chance.choice([0.0, 0.0, 1.0, 1.0, 2.5, 7.0, 1e-3]) for _ in range(table.length)]
        weights[chance.randrange(table.length)] = 3.0
        size = (("size", chance.choice([1, 5, table.length * 2])),) if chance.random() < 0.4 else ()
        return Ordered("weighted", (("seed", seed), ("weights", tuple(weights)), *size))

    def bans(self, table: Table, share: float = 0.25) -> Any:
        found = []
        while table.length > self.happens(0.97) and self.happens(share) and len(found) < 3:
            most = table.length if self.happens(0.04) else table.length - 1
            count = min(most, self.one(1, 1, 2, 3, table.length // 2, most))
            if count:
                found.append((self.one(0, 0, 1, 2, 3, 5), frozenset(self.chance.sample(range(table.length), count))))
        return tuple(found)

    def mixture(self, depth: int) -> Mix:
        names = ["web", "code", "books"][: self.one(1, 2, 2, 2, 3, 3)]
        parts = tuple(
            (name, self.mixture(depth + 1) if depth < 2 and self.happens(0.12 if depth else 0.18) else self.single())
            for name in names
        )
        stop = self.one(*STOPS) if depth == 0 or self.happens(0.05) else self.one(*STOPS[:3])
        plain = depth > 0 and self.happens(0.95)
        weights: Any = self.weights(names) if self.happens(0.6) else None
        if not plain and self.happens(0.35):
            steps = sorted({0, *(self.one(1, 2, 3, 4, 7) for _ in range(self.one(1, 2, 2)))})
            weights = [(step, self.weights(names)) for step in steps]
        unit = "batch" if not plain and self.happens(0.25) else "sample"
        found = Mix(parts, self.chance.randrange(1000), weights, stop, unit=unit, period=self.one(None, 1, 4, 9))
        if depth == 0 and self.happens(0.15):
            found = replace(found, batch_size=self.size if self.happens(0.9) else self.size + 1)
        bans = []
        while self.happens(0.2) and len(bans) < 2:
            bans.append((self.one(0, 1, 2, 4), self._mixed_bans(found)))
        return replace(found, bans=tuple(bans))

    def _mixed_bans(self, mixture: Mix) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, stream in mixture.parts:
            if isinstance(stream, Mix):
                found[name] = self._mixed_bans(stream)
            elif isinstance(stream, Records | Sequences) and stream.table.length > self.happens(0.97) and self.happens(0.7):
                n = stream.table.length
                if isinstance(stream, Sequences) and (stream.has_marks or (isinstance(stream, Packs) and stream.has_pages)):
                    n = max(1, min(n, len(stream.texts)))
                found[name] = sorted(self.chance.sample(range(n), min(n, self.one(1, 1, 2, n // 2 or 1))))
        return found

    def weights(self, names: list[str]) -> dict[str, float]:
        found = {name: self.one(0, 1, 1, 2, 3, 0.5, 0.1) for name in names}
        return found if any(found.values()) else dict.fromkeys(names, 1)

    # Loaders

    def legs(self, stream: Stream) -> tuple[Leg, ...]:
        bound = isinstance(stream, Mix) and any(isinstance(s, Mix) and s.is_bound for s in stream.streams())
        phases = self.phases(stream) if self.happens(0.25) and (not bound or self.happens(0.1)) else None
        tail = self.one(*TAILS)
        size = self.size
        ids = self.happens(0.6)
        unreadable = any(getattr(s, "table", None) is not None and s.table.bad for s in stream.streams())
        skip = unreadable or self.happens(0.02 if self.recipe["sequential"] else 0.1)
        legs: list[Leg] = []
        many = self.one(1, 1, 1, 2, 2, 3)
        for number in range(many):
            if number and (phases is not None or not bound or self.happens(0.08)):
                size = self.one(1, 2, 3, 4, 5, 6, 8) if self.happens(0.4) and phases is None else size
                tail = self.one(*TAILS) if self.happens(0.3) else tail
            divides = [w for w in (1, 1, 1, 1, 2, 3, 4) if size % w == 0] if phases is None else [1, 1, 2]
            legs.append(
                Leg(
                    self.one(0, 1, 2, 3, 5) if number else self.one(1, 2, 3, 4, 6, 10),
                    None if phases is not None else size,
                    phases,
                    tail,
                    self.chance.choice(divides) if not self.happens(0.01) else 3,
                    self.one(0, 0, 0, 0, 0, 0, 0, 0, 0, 2),
                    ids,
                    self.one("telling", "telling", "nothing" if self.happens(0.1) else "telling") if self.happens(0.15) else None,
                    "skip" if skip else "raise",
                    number == many - 1 and self.happens(0.06),
                    self.happens(0.15),
                    self.one(0, 1, 2, 4, 7) if self.happens(0.12) else None,
                )
            )
        return tuple(legs)

    def bucketed(self, stream: Stream) -> Stream:
        """The same streams, some of them with buckets."""
        chance = random.Random(f"buckets {self.seed}")  # apart, so that all other cases are what they were
        return _with_buckets(stream, chance, self.size) if chance.random() < 0.3 else stream

    def balanced(self, stream: Stream, legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
        """The same legs, some of them with balance."""
        chance = random.Random(f"balance {self.seed}")  # apart, so that all other cases are what they were
        first = leaves(stream)[0]
        plain = isinstance(first, Sequences) and not isinstance(first, Packs)
        if chance.random() > (0.02 if plain else 0.3):
            return legs
        choices = _costs(first) if chance.random() < 0.95 else [*_costs(first), *_names(first), "attention", "unknown"]
        found = []
        for leg in legs:
            sizes = [leg.size or 1] if leg.phases is None else [phase.batch_size for phase in leg.phases]
            micro = [m for m in (1, 2, 3) if all(size % (leg.world * m) == 0 for size in sizes)] or [1]
            number = chance.choice(micro) if chance.random() < 0.97 else 2
            given = (chance.choice(choices), number) if choices and chance.random() < 0.8 else None
            found.append(replace(leg, balance=given))
        return tuple(found)

    def flattened(self, stream: Stream, legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
        """The same legs, some of them with batch_tokens."""
        chance = random.Random(f"batch tokens {self.seed}")  # apart, like all that follows
        first = leaves(stream)[0]
        if chance.random() > (0.4 if isinstance(first, Packs) else 0.005):
            return legs
        world, found = chance.choice([1, 1, 2, 3]), []
        for leg in legs:
            if leg.phases is not None or (leg.balance is not None and chance.random() < 0.97):
                found.append(leg)
                continue
            world = chance.choice([1, 2, 4]) if isinstance(first, Packs) and not _is_bound(stream) else world
            tokens = self.recipe["length"] + (chance.random() < 0.05)
            found.append(replace(leg, size=world, world=world, tokens=tokens))
        return tuple(found)

    def planned(self, stream: Stream, depth: int = 0) -> Stream:
        """The same mixture, perhaps by tokens, with a temperature or with caps."""
        if not isinstance(stream, Mix):
            return stream
        chance = random.Random(f"plan {self.seed} {depth}")
        parts = tuple((name, self.planned(part, depth + 1)) for name, part in stream.parts)
        found, names = replace(stream, parts=parts), [name for name, _ in parts]
        if chance.random() < 0.15:
            plain = None if chance.random() < 0.95 else found.weights
            found = replace(found, temperature=chance.choice([0.5, 1, 2, 2, 3.5, float("inf")]), weights=plain)
        if chance.random() < (0.25 if found.temperature is None else 0.6):
            forms = {} if isinstance(leaves(stream)[0], Sequences) else stream.forms()
            changing = [name for name, form in forms.items() if form.kind != "fixed"]
            by = "tokens" if not forms or len(changing) == 1 else chance.choice([*forms])
            found = replace(found, by=by if chance.random() < 0.95 else chance.choice(["tokens", "unknown"]))
        if chance.random() < (0.3 if depth == 0 else 0.02):
            caps = {name: chance.choice([0, 0.3, 0.5, 1, 1, 1.5, 2, 3]) for name in names if chance.random() < 0.6}
            found = replace(found, max_epochs=caps)
        return found

    def amended(self, case: Case) -> Case:
        """The same case, perhaps with amendments, which its first legs may not know yet."""
        chance = random.Random(f"amendments {self.seed}")
        if not isinstance(case.stream, Mix) or chance.random() > 0.35:
            return case
        found, legs = case.stream, list(case.legs)
        for step in sorted(chance.sample(range(1, 10), chance.choice([1, 1, 1, 2]))):
            names = [name for name, _ in found.parts]
            added = chance.choice([(), (), ("news",), ("wiki", "mail")]) if "news" not in names and "wiki" not in names else ()
            streams = tuple((name, self.single()) for name in added)
            if any(isinstance(one, Records) and one.table.bad for _, one in streams):
                legs = [replace(leg, on_error="skip") for leg in legs]
            names += added
            weights = {name: chance.choice([0, 1, 1, 2, 3, 0.5]) for name in names}
            one = Amended(
                step,
                (weights if any(weights.values()) else dict.fromkeys(names, 1)) if chance.random() < 0.85 else None,
                added,
                {name: chance.choice([0.5, 1, 2, 3]) for name in names if chance.random() < 0.4} if chance.random() < 0.3 else None,
            )
            found = replace(found, parts=(*found.parts, *streams), amendments=(*found.amendments, one))
        if found.bans and chance.random() < 0.5:
            new = self._mixed_bans(replace(found, parts=found.parts[found.num_first :]))
            found = replace(found, bans=(*found.bans, (chance.choice([0, 2, 5]), new)))
        if len(legs) > 1 and chance.random() < 0.75:
            counts = [*sorted(chance.choice([0, 0, 1, 2]) for _ in legs[1:]), 2]
            counts = counts[::-1] if chance.random() < 0.05 else counts
            whole = len(found.amendments)
            legs = [replace(leg, kept=None if kept >= whole else kept) for leg, kept in zip(legs, counts, strict=True)]
        if chance.random() < 0.9:  # such runs go on with one shape only
            first = legs[0]
            legs = [
                replace(leg, size=first.size, tail=first.tail, world=leg.world if _divides(first, leg.world) else first.world)
                if leg.tokens is None and first.tokens is None
                else replace(leg, tail=first.tail)
                for leg in legs
            ]
        return replace(case, stream=found, legs=tuple(legs))

    def phases(self, stream: Stream) -> tuple[Phase, ...]:
        found = []
        for _ in range(self.one(1, 2, 2, 3)):
            length = self.one(1, 2, 3, 5, 8, 13) if self.recipe["sequential"] else 1 if self.happens(0.97) else 4
            weights = None
            if isinstance(stream, Mix) and self.happens(0.4):
                weights = self.weights([name for name, _ in stream.parts])
            elif not isinstance(stream, Mix) and self.happens(0.02):
                weights = {"web": 1.0}
            much: dict[str, Any] = (
                {"epochs": self.one(0.5, 0.25, 1.5, 1)} if self.happens(0.2) else {"steps": self.one(0, 1, 2, 3, 5)}
            )
            found.append(Phase(batch_size=self.one(2, 2, 4, 6), seq_len=length, weights=weights, **much))
        return tuple(found)


def _of_documents(stream: Sequences, bans: Bans) -> Bans:
    """Bans behind .sequences or .pack: of documents that are there, where these are no records."""
    if not isinstance(stream, Packs) and not stream.has_marks:
        return bans
    count = len(stream.texts) if stream.has_pages and stream.separator != 70_000 else stream.table.length
    found = tuple((step, frozenset(one for one in ids if one < count)) for step, ids in bans)
    return tuple((step, ids) for step, ids in found if 0 < len(ids) < count)


def _is_bound(stream: Stream) -> bool:
    return isinstance(stream, Mix) and stream.is_bound


def _divides(leg: Leg, world: int) -> bool:
    return leg.phases is not None or (leg.size or 1) % world == 0


def _with_buckets(stream: Stream, chance: random.Random, size: int) -> Stream:
    if isinstance(stream, Mix):
        return replace(stream, parts=tuple((name, _with_buckets(part, chance, size)) for name, part in stream.parts))
    if not isinstance(stream, Records) or stream.ordered.method not in ("in_order", "shuffle") or chance.random() < 0.2:
        return stream
    ragged = [name for name, form in stream.table.forms.items() if form.kind != "fixed"]
    if not ragged or (dict(stream.ordered.options).get("lanes", 1) > 1 and chance.random() < 0.9):
        return stream
    number = size * chance.choice([1, 1, 1, 2]) if chance.random() < 0.96 else size + 1
    return replace(stream, buckets=(number, chance.choice([1, 2, 3, 5]), chance.choice(ragged)))


def _names(stream: Stream) -> list[str]:
    """The fields of a batch; nothing where there are no tokens for sequences, which is refused."""
    has_none = isinstance(stream, Sequences) and stream.field is None and not varying(stream.table) and not stream.has_pages
    return [] if has_none else [*stream.forms()]


def _costs(stream: Stream) -> list[str]:
    """What samples of a stream may be balanced by."""
    if not isinstance(stream, Records):
        return ["attention", "tokens"]
    forms = {name: form for name, form in stream.table.forms.items() if name != getattr(stream, "image", None)}
    numbers = [
        name
        for name, form in forms.items()
        if form.kind == "fixed" and form.shape == () and form.dtype[:3] in ("int", "uin", "flo")
    ]
    ragged = [name for name, form in forms.items() if form.kind != "fixed"]
    return numbers + ragged + (["attention", "tokens"] if len(varying(stream.table)) == 1 and ragged else [])


def make_case(seed: int) -> Case:
    return Lot(seed).case()

"""MixtureFile: a mixture as a YAML (or JSON) file, read, checked and written.

    seed: 5                              # of the mixture
    stop: forever                        # these are arguments of mix(): stop, unit, period, by, temperature
    sequences: {length: 2048}            # or pack: {length: 2048, ...}; left out, samples are records
    sources:
      web: {path: web/*.rox, weight: 0.7, shuffle: 1}
      wiki: {path: wiki.rox, weight: 0.3, shuffle: {seed: 2, block: 64}, max_epochs: 4}
    amendments:
      - step: 10000
        weights: {web: 0.5, wiki: 0.2, code: 0.3}
        add:
          code: {path: code.rox, shuffle: 3}

A path is relative to the file. ``shuffle`` is a seed or the arguments of shuffle(); false takes records in order. ``open`` has
arguments of ``pen.open``. Numbers and truth values are those of YAML 1.2 and JSON: 1e-9 is a number, 010 and no are texts. A key
that comes twice is an error.
"""

import glob
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import FormatError
from penstock.formats.files import has_pattern
from penstock.formats.open import open as open_source
from penstock.process import need
from penstock.remote.url import is_url
from penstock.stream.mixed import MixedStream, mix
from penstock.stream.stream import Stream
from penstock.system import reading, writing

__all__ = ["MixtureFile", "load_mixture"]

OPTIONS = ("stop", "unit", "period", "by", "temperature")
KEYS = ("seed", "sources", *OPTIONS, "sequences", "pack", "amendments")
SOURCE_KEYS = ("path", "weight", "max_epochs", "shuffle", "open")
AMENDMENT_KEYS = ("step", "weights", "add", "max_epochs")

PLAIN = {
    "bool": (r"true|false", "tf"),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    "null": (r"~|null|", "~n\0"),
}
"""What a plain text stands for, tried in this order, and the characters that it may begin with."""


@dataclass(frozen=True)
class MixtureFile:
    """What a file says, checked; ``directory`` is what its paths are relative to.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from penstock.stream.mixture_file import MixtureFile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.arange(100))
    >>> file = MixtureFile({"seed": 5, "sources": {"a": {"path": "a.npy", "shuffle": 1}}}, folder)
    >>> again = MixtureFile.read(file.write(folder / "mix.yaml"))
    >>> again == file, len(again.stream())
    (True, 100)
    """

    content: Mapping[str, Any]
    directory: Path = field(default=Path(), compare=False)
    name: str = field(default="the mixture", compare=False)

    def __post_init__(self) -> None:
        _check_keys(self.name, self.content, KEYS, ("seed", "sources"))
        if "sequences" in self.content and "pack" in self.content:
            raise ValueError(f"{self.name}: sequences and pack exclude each other")
        for kind in ("sequences", "pack"):
            if kind in self.content and "length" not in _mapping(f"{self.name}: {kind}", self.content[kind]):
                raise ValueError(f"{self.name}: {kind} needs a length")
        self._check_sources("sources", self.content["sources"])
        weighted = [name for name, one in self.content["sources"].items() if "weight" in one]
        if weighted and len(weighted) < len(self.content["sources"]):
            missing = sorted(set(self.content["sources"]) - set(weighted))
            raise ValueError(f"{self.name}: some sources have a weight, {missing} have none: give all of them one, or none")
        amendments = self.content.get("amendments", [])
        if not isinstance(amendments, list):
            raise TypeError(f"{self.name}: amendments must be a list, got {type(amendments).__name__}")
        for number, amendment in enumerate(amendments):
            where = f"amendments[{number}]"
            _check_keys(f"{self.name}: {where}", amendment, AMENDMENT_KEYS, ("step",))
            for key in ("weights", "max_epochs"):
                _mapping(f"{self.name}: {where}.{key}", amendment.get(key, {}))
            self._check_sources(f"{where}.add", amendment.get("add", {}))
            weighted = [name for name, one in amendment.get("add", {}).items() if "weight" in one]
            if weighted:
                raise ValueError(
                    f"{self.name}: {where}.add: {weighted} have a weight, and an amendment gives one to all sources: "
                    f"write it in {where}.weights"
                )

    def _check_sources(self, where: str, sources: Any) -> None:
        for name, source in _mapping(f"{self.name}: {where}", sources).items():
            _check_keys(f"{self.name}: {where}.{name}", source, SOURCE_KEYS, ("path",))
            paths = source["path"] if isinstance(source["path"], list) else [source["path"]]
            if not paths or not all(isinstance(path, str) and path for path in paths):
                raise TypeError(f"{self.name}: {where}.{name}: path must be a text or a list of texts, got {source['path']!r}")

    @classmethod
    def read(cls, path: str | Path) -> "MixtureFile":
        """The mixture of a file; FormatError if it is no YAML, ValueError or TypeError if something in it is wrong."""
        path = Path(path)
        with reading(path):
            raw = path.read_bytes()
        try:
            content = json.loads(raw, object_pairs_hook=_without_repeats) if path.suffix == ".json" else _load_yaml(raw)
        except RecursionError as error:
            raise FormatError(f"{path}: cannot be read: it is nested too deeply") from error
        except ValueError as error:
            raise FormatError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "yaml":
                raise
            raise FormatError(f"{path}: cannot be read: {' '.join(str(error).split())[:300]}") from error
        return cls(_mapping(str(path), content), path.parent, str(path))

    def write(self, path: str | Path) -> Path:
        """Write it to a file, for :meth:`read`; paths stay as they are."""
        path, content = Path(path), json.loads(json.dumps(self.content))
        text = json.dumps(content, indent=2) if path.suffix == ".json" else _dump_yaml(content)
        with writing(path, "writing"):
            path.write_text(text, encoding="utf-8")
        return path

    def amend(self, step: int, **changes: Any) -> "MixtureFile":
        """The same with one more amendment: weights, add (sources as in the file), max_epochs."""
        given = {"step": step, **{key: value for key, value in changes.items() if value is not None}}
        return MixtureFile({**self.content, "amendments": [*self.content.get("amendments", []), given]}, self.directory, self.name)

    def stream(self) -> MixedStream:
        """The mixture itself; opens all sources."""
        content, sources = self.content, self.content["sources"]
        options = {key: content[key] for key in OPTIONS if key in content}
        if any("weight" in one for one in sources.values()):
            options["weights"] = {name: one["weight"] for name, one in sources.items()}
        caps = {name: one["max_epochs"] for name, one in sources.items() if "max_epochs" in one}
        if caps:
            options["max_epochs"] = caps
        streams = self._streams("sources", sources)
        with _told(self.name):
            mixed = mix(streams, seed=content["seed"], **options)
        for number, amendment in enumerate(content.get("amendments", [])):
            added = amendment.get("add", {})
            caps = {name: one["max_epochs"] for name, one in added.items() if "max_epochs" in one} | amendment.get("max_epochs", {})
            streams = self._streams(f"amendments[{number}].add", added)
            with _told(f"{self.name}: amendments[{number}]"):
                mixed = mixed.amend(amendment["step"], weights=amendment.get("weights"), add=streams, max_epochs=caps or None)
        return mixed

    def _streams(self, where: str, sources: Mapping[str, Any]) -> dict[str, Stream]:
        found = {}
        for name, source in sources.items():
            with _told(f"{self.name}: {where}.{name}"):
                found[name] = self._stream(source)
        return found

    def _stream(self, given: Mapping[str, Any]) -> Stream:
        paths = given["path"] if isinstance(given["path"], list) else [given["path"]]
        found = [self._full(path) for path in paths]
        source = open_source(found if isinstance(given["path"], list) else found[0], **_mapping("open", given.get("open", {})))
        shuffle = given.get("shuffle", False)
        ordered: Any
        if shuffle is False or shuffle is None:
            ordered = source.in_order()
        else:
            ordered = source.shuffle(**(shuffle if isinstance(shuffle, Mapping) else {"seed": shuffle}))
        for kind in ("sequences", "pack"):
            if kind in self.content:
                options = dict(self.content[kind])
                return getattr(ordered, kind)(options.pop("length"), **options)  # type: ignore[no-any-return]
        return ordered  # type: ignore[no-any-return]

    def _full(self, path: str) -> str:
        if is_url(path) or Path(path).is_absolute():
            return path
        directory = str(self.directory)
        return str(Path(glob.escape(directory) if has_pattern(path) else directory) / path)


def load_mixture(path: str | Path) -> MixedStream:
    """The mixture of a YAML or JSON file: see :class:`penstock.stream.mixture_file.MixtureFile`.

    >>> import tempfile, numpy as np, penstock as pen
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.arange(100))
    >>> written = (folder / "mix.yaml").write_text("seed: 5\\nsources:\\n  a: {path: a.npy, shuffle: 1}\\n")
    >>> len(pen.load_mixture(folder / "mix.yaml"))
    100
    """
    return MixtureFile.read(path).stream()


def _yaml() -> Any:
    return need("yaml", "yaml")


def _load_yaml(raw: bytes) -> Any:
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        return _without_repeats(
            [(loader.construct_object(key, deep=True), loader.construct_object(value, deep=True)) for key, value in node.value]
        )

    _add_plain(Loader)
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
    Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(loader.construct_scalar(node)))
    return yaml.load(raw, Loader)  # a SafeLoader


def _dump_yaml(content: Any) -> str:
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    _add_plain(Dumper)
    return str(yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def _add_plain(kind: Any) -> None:
    """What plain texts stand for, when a document is read and when texts are quoted because they look like something else."""
    for name, (pattern, first) in PLAIN.items():
        characters = ["" if one == "\0" else one for one in first]
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), characters)


def _without_repeats(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Keys and values of a file; ValueError if a key comes twice."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise ValueError(f"expected texts as keys, got {key!r}: put it in quotes")
        if key in found:
            raise ValueError(f"the key {key!r} comes twice")
        found[key] = value
    return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Errors about arguments say where in the file these are."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"{where}: {error}") from error


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: expected keys and values, got {type(value).__name__}")
    if not all(isinstance(key, str) for key in value):
        raise TypeError(f"{where}: expected texts as keys, got {next(key for key in value if not isinstance(key, str))!r}")
    return value


def _check_keys(where: str, value: Any, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    unknown = sorted(set(_mapping(where, value)) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown keys {unknown}; there are {list(known)}")
    missing = [key for key in needed if key not in value]
    if missing:
        raise ValueError(f"{where}: expected {missing}, which are missing")

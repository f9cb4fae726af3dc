"""Folders that hold several modules, some of them models: sentence-transformers, and pipelines of diffusers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.config import MAX_CONFIG, read_config
from blockaudit.checkpoint.files import read_capped, short
from blockaudit.checkpoint.index import INDEX_SUFFIX, refused_name
from blockaudit.checkpoint.jsontext import BadJsonError, Pairs, parse_pairs
from blockaudit.checkpoint.links import leads_out
from blockaudit.checkpoint.weights import WEIGHT_SUFFIXES
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Fault

MODULES, PIPELINE = "modules.json", "model_index.json"
# Whether a manifest speaks of a model with this config.json.
Speaks = Callable[[dict[str, Any] | None], bool]
_WEIGHTS = (*WEIGHT_SUFFIXES, INDEX_SUFFIX)
_SENTENCE = "sentence_transformers."
_MOST = 200  # modules of one folder


class Module(msgspec.Struct, frozen=True):
    """One module: its name, the sub-folder that it lies in (empty: the folder itself) and its class."""

    name: str
    folder: str
    kind: str
    model: bool  # whether it is a text model that could be audited
    refused: str = ""


class Bundle(msgspec.Struct, frozen=True):
    """What a folder's index says that it is made of. `file` is that index."""

    what: str
    file: str
    root: str
    modules: tuple[Module, ...]

    def models(self, speaks: Speaks) -> tuple[str, ...]:
        """The sub-folders of the models to audit: those that a manifest speaks of, else all that could be."""
        models = [m for m in self.modules if m.model and not m.refused]
        known = [m for m in models if speaks(read_config(os.path.join(self.root, m.folder))[0])]
        return tuple(m.folder for m in known or models)

    def model(self, source: str, speaks: Speaks) -> str:
        """The sub-folder of the one model to audit. Raises RequestError where there is none, or several."""
        found = self.models(speaks)
        if len(found) == 1:
            return found[0]
        if found:
            text = f"{self.what} with {len(found)} text models ({', '.join(map(short, found))}): name the folder of one"
            raise RequestError(f"{source}: {text}")
        for module in (m for m in self.modules if m.model):
            text = f"the folder of {short(module.name)}, {short(module.folder)!r}, {module.refused}: it is not opened"
            raise RequestError(f"{source}: {self.file}: {text}")
        raise RequestError(f"{source}: {self.what} without a text model: {self.file} names none")

    def beside(self, folder: str) -> Iterator[Fault]:
        """What is not the model in this sub-folder: a note for each module with weights, and one for the rest."""
        without: list[str] = []
        for module in self.modules:
            if module.model and module.folder == folder:
                continue
            weights = _weights_of(self.root, module)
            if weights:
                text = f"{short(module.kind)} with {', '.join(weights)}: not covered here"
                yield Fault("part-not-covered", short(module.name), text, (), None, len(weights), self.file)
            else:
                without.append(f"{short(module.name)} ({short(module.kind)})")
        if without:
            text = f"modules without weights are not covered: {', '.join(without)}"
            yield Fault("part-not-covered", self.file, text, (), None, len(without), self.file)


def read_bundle(folder: str) -> Bundle | None:
    """The bundle that a folder is; None for a folder that is a model itself, or nothing of the kind."""
    return _sentence_transformers(folder) or _diffusers(folder)


def _sentence_transformers(folder: str) -> Bundle | None:
    if not storage.named(os.path.join(folder, MODULES)) or leads_out(folder, MODULES):
        return None
    try:
        listed = parse_pairs(read_capped(os.path.join(folder, MODULES), MAX_CONFIG))
    except (OSError, ValueError, BadJsonError):
        return None  # an index that cannot be read names nothing: the folder is taken for what else it is
    found = [dict(e) for e in cast("list[Any]", listed)[:_MOST] if isinstance(e, Pairs)] if _is_list(listed) else []
    modules = [m for entry in found if (m := _module(folder, entry)) is not None]
    if not modules:
        return None
    return Bundle("a sentence-transformers folder", MODULES, folder, tuple(modules))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, Pairs)


def _module(root: str, entry: dict[str, Any]) -> Module | None:
    kind, path = entry.get("type"), entry.get("path")
    if not isinstance(kind, str) or not kind.startswith(_SENTENCE) or not isinstance(path, str):
        return None
    last = kind.rpartition(".")[2]
    return Module(path or last, path, last, last == "Transformer", _refused(root, path))


def _diffusers(folder: str) -> Bundle | None:
    index, _ = read_config(folder, PIPELINE)
    if index is None or not isinstance(index.get("_class_name"), str):
        return None
    modules: list[Module] = []
    for name, entry in list(index.items())[:_MOST]:
        said = cast("list[Any]", entry) if isinstance(entry, list) else []
        if len(said) == 2 and all(isinstance(word, str) for word in said):
            model = said[0] == "transformers" and name.startswith("text_encoder")
            modules.append(Module(name, name, said[1], model, _refused(folder, name)))
    return Bundle("a diffusers pipeline", PIPELINE, folder, tuple(modules))


def _refused(root: str, folder: str) -> str:
    """Why a sub-folder is not opened, or an empty string: also a link that leads out of the folder."""
    return refused_name(root, f"{folder}/config.json") if folder else ""


def _weights_of(root: str, module: Module) -> list[str]:
    """Names of the weight files in the sub-folder of a module; an index stands for its shards."""
    if module.refused or not module.folder:
        return []
    try:
        names = [name for name in storage.names_in(os.path.join(root, module.folder)) if name.endswith(_WEIGHTS)]
    except OSError:
        return []  # a module that is named and not there, which its loader will say
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    shown = indexes or names
    return [short(f"{module.folder}/{name}") for name in shown[:4]] + (["..."] if len(shown) > 4 else [])

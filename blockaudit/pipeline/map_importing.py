"""`map import`: a conversion mapping that others keep, as a map that is held to `map check`."""

from __future__ import annotations

import re

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.manifest.load import LoadedManifest
from blockaudit.manifest.load import load as load_manifest
from blockaudit.migrate.check import check
from blockaudit.migrate.imagined import imagined
from blockaudit.migrate.importing import imported, of_file, of_transformers
from blockaudit.migrate.importing.library import PREFIX
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.work import lay
from blockaudit.pipeline.map_drafting import MapDraft, reported


def import_map(what: str, *, source: str | None = None, target: str | None = None) -> MapDraft:
    """The map of `transformers:MODEL_TYPE`, or of a JSON or YAML file of patterns and replacements.

    source: the manifest of the keys that the mapping reads; of a model type, by default the library's manifest of it.
    target: the manifest of the keys that it writes; by default the one of the library that has them all.
    What operations of ours cannot say has no rule and is told. Raises RequestError.
    """
    model_type = what.removeprefix(PREFIX) if what.startswith(PREFIX) else None
    mapping = of_file(what) if model_type is None else of_transformers(model_type)
    mine = _source(what, model_type, source)
    theirs = None if target is None else load_manifest(target)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", model_type or what.rpartition("/")[2])[:60] + "_imported"
    found = imported(mapping, name, mine, theirs)
    map_ = found.drafted.map
    works = [lay(LoadedMap(map_, name, ""), side, found.target) for side in imagined(mine, map_, found.target)]
    return reported(found.drafted, (f"from {mine.id} to {found.target.id}",), [f for w in works for f in check(w)])


def _source(what: str, model_type: str | None, named: str | None) -> LoadedManifest:
    if named is not None:
        return load_manifest(named)
    if model_type is None or model_type not in resources.manifest_ids():
        raise RequestError(
            f"{what}: no manifest of the library has its name: give that of the keys it reads (--source)"
        )
    return load_manifest(model_type)

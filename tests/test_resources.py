from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockaudit import resources
from blockaudit.errors import RequestError


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A library of two manifests, as a wheel has it."""
    folder = tmp_path / "_data" / "manifests"
    folder.mkdir(parents=True)
    for name in ("t5", "llama"):
        (folder / f"{name}.json").write_text("{}")
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path)
    resources._folder.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield folder
    resources._folder.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_schemas_are_found() -> None:
    assert resources.schema("report")["title"] == "blockaudit report"
    assert resources.schema_path("report").name == "report.schema.json"


def test_manifests_are_found_in_a_wheel(library: Path) -> None:
    assert resources.manifest_ids() == ("llama", "t5")
    assert resources.manifest_path("t5") == library / "t5.json"


@pytest.mark.parametrize("name", ["gpt9", "../llama", "/etc/passwd", ""])
def test_what_the_library_lacks_is_refused_with_what_it_has(library: Path, name: str) -> None:
    with pytest.raises(RequestError, match="in the library: it has llama, t5"):
        resources.manifest_path(name)

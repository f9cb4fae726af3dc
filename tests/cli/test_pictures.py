"""`--format html` and `--report PATH.html`: the page of a real audit, with what only a picture shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from blockaudit import pipeline
from tests.cli.conftest import Outcome
from tests.report.html.pages import classed, tags, tree, words

TINY = "fixtures/tiny_llama"


def test_a_report_of_an_audit_is_a_page_with_pictures(blockaudit: Callable[..., Outcome], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert blockaudit("inspect", TINY, "--report", target, "--report", tmp_path / "report.json").status == 0
    root = tree(target.read_text(encoding="ascii"))
    assert words(tags(root, "h1")[0]) == "Accepted at headers level"
    assert len(classed(root, "bw")) == 1
    assert words(classed(root, "strip")[0]) == "0 1 2 3"
    charts = [words(tags(figure, "figcaption")[0]) for figure in classed(root, "chart")]
    assert charts == ["decoder.self_attention.norm_in", "decoder.mlp.norm_in"]
    # What is drawn is no part of the document that programs read.
    assert "picture" not in json.loads((tmp_path / "report.json").read_text())


def test_the_page_goes_to_stdout_too(blockaudit: Callable[..., Outcome]) -> None:
    done = blockaudit("inspect", TINY, "--format", "html")
    assert len(classed(tree(done.out), "bw")) == 1


def test_a_written_page_may_be_written_again_beside_a_single_file(
    blockaudit: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = tmp_path / "model.safetensors"
    source.write_bytes(Path(TINY, "model.safetensors").read_bytes())
    target = tmp_path / "report.html"
    first = blockaudit("inspect", source, "--report", target)
    assert blockaudit("inspect", source, "--report", target).status == first.status != 2


def test_gains_are_the_means_of_the_stored_vectors() -> None:
    picture = pipeline.inspect(TINY, pictures=True).picture
    assert picture is not None
    final = next(gains for gains in picture.gains if gains.site == "decoder.final_norm")
    attention = next(gains for gains in picture.gains if gains.site == "decoder.self_attention.norm_in")
    assert final.layers == ()
    assert attention.layers == (0, 1, 2, 3)
    assert attention.means[2] == _mean("model.layers.2.input_layernorm.weight")


def test_without_a_page_nothing_is_drawn() -> None:
    assert pipeline.inspect(TINY).picture is None


def test_a_layer_count_that_cannot_be_one_is_no_endless_drawing(
    blockaudit: Callable[..., Outcome], tmp_path: Path
) -> None:
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes(Path(TINY, name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    for count in (10**12, -1, 10**5):
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))
        assert blockaudit("inspect", tmp_path, "--report", tmp_path.with_suffix(".html")).status == 1
        assert tmp_path.with_suffix(".html").stat().st_size < 1_000_000


def test_other_formats_load_no_templates() -> None:
    code = f"import sys; from blockaudit.cli.main import run; run(['inspect', {TINY!r}, '--quiet']); "
    code += "assert not {'jinja2', 'blockaudit.report.html.page', 'blockaudit.manifest.wiring'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def _mean(key: str) -> float:
    """By hand, from the bytes: bfloat16 is the upper half of a float32."""
    import struct

    data = Path(TINY, "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    start, stop = json.loads(data[8 : 8 + size])[key]["data_offsets"]
    octets = data[8 + size + start : 8 + size + stop]
    numbers = [struct.unpack("<f", b"\0\0" + octets[i : i + 2])[0] for i in range(0, len(octets), 2)]
    return sum(numbers) / len(numbers)

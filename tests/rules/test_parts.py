"""Folders and models that are more than one plain model: what is audited of them, and what is said of the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import Build, Draft, Edit, add, config, drop, family, file

OLDER, NEWER = "language_model.", "model.language_model."
NORM = "model.layers.1.input_layernorm.weight"


def inside(
    root: str = OLDER,
    model_type: str = "llava",
    place: tuple[str, ...] = ("text_config",),
    class_name: str = "XForConditionalGeneration",
    **more: Any,
) -> Edit:
    """The model as the text stack of a larger one, with a vision tower beside it."""

    def edit(d: Draft) -> None:
        assert d.config is not None
        d.tensors = {moved(key, root): tensor for key, tensor in d.tensors.items()}
        above = "model." if root.startswith("model.") else root.rpartition("language_model.")[0]
        add((4, 4), f"{above}vision_tower.layers.{{0-2}}.mlp.weight", f"{above}projector.weight")(d)
        inner: dict[str, Any] = {k: v for k, v in d.config.items() if k != "architectures"}
        for name in reversed(place):
            inner = {name: inner}
        d.config = {"model_type": model_type, "architectures": [class_name], **inner, **more}

    return edit


def moved(key: str, root: str) -> str:
    if root == NEWER:
        return key if key.startswith("lm_head") else NEWER + key.removeprefix("model.")
    return root + key


def without_config(name: str) -> Edit:
    def edit(d: Draft) -> None:
        assert d.config is not None
        del d.config[name]

    return edit


def modules(*entries: tuple[str, str]) -> str:
    of = "sentence_transformers.models."
    return json.dumps([{"idx": i, "name": str(i), "path": p, "type": of + kind} for i, (p, kind) in enumerate(entries)])


def sentence(path: str, *edits: Edit) -> Build:
    """A sentence-transformers folder around a BERT, with a dense layer that has weights."""

    def build(folder: Path) -> Path:
        family("bert", *edits)(folder / path)
        family("bert")(folder / "2_Dense")
        listed = modules((path, "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))
        (folder / "modules.json").write_text(listed)
        return folder

    return build


def pipeline(*encoders: str, edits: tuple[Edit, ...] = (), names: dict[str, Any] | None = None) -> Build:
    """A diffusers folder: a text encoder of each family named, a unet and a scheduler."""

    def build(folder: Path) -> Path:
        index: dict[str, Any] = {
            "_class_name": "Pipe",
            "scheduler": ["diffusers", "Steps"],
            "unet": ["diffusers", "Net"],
        }
        for i, name in enumerate(encoders):
            part = f"text_encoder_{i + 1}" if i else "text_encoder"
            family(name, *(edits if i == len(encoders) - 1 else ()))(folder / part)
            index[part] = ["transformers", "Encoder"]
        family("bert")(folder / "unet")
        (folder / "model_index.json").write_text(json.dumps(index | (names or {})))
        return folder

    return build


CASES: list[Case] = [
    *(
        Fires(
            "part-not-covered",
            f"a text stack below {root}",
            family("llama", inside(root)),
            severity="note",
            exit=0,
            times=2,
            says=["of llava only the text stack was audited (llama"],
        )
        for root in (OLDER, NEWER)
    ),
    *(
        Fires(
            "part-not-covered",
            f"a text stack that {'.'.join(place)} describes",
            family("llama", inside(root, place=place)),
            severity="note",
            exit=0,
            times=2,
        )
        for root, place in (
            (OLDER, ("llm_config",)),
            (OLDER, ("language_config",)),
            ("thinker.", ("thinker_config", "text_config")),
        )
    ),
    Fires(
        "norm-missing",
        "in a text stack, older layout",
        family("llama", drop(NORM), inside()),
        tensors=[OLDER + NORM],
    ),
    Fires(
        "norm-missing",
        "in a text stack, newer layout",
        family("llama", drop(NORM), inside(NEWER)),
        tensors=["model.language_model.layers.1.input_layernorm.weight"],
    ),
    Fires(
        "layer-count-mismatch",
        "a layer too many in a text stack",
        family("llama", config(num_hidden_layers=1), inside()),
        expected=1,
        observed=2,
    ),
    Fires(
        "unexpected-key",
        "inside a text stack",
        family("llama", add((8, 8), "model.layers.0.self_attn.r_proj.weight"), inside()),
        tensors=[OLDER + "model.layers.0.self_attn.r_proj.weight"],
    ),
    Fires(
        "missing-key",
        "a head that the larger model does not tie",
        family("llama_tied", inside(tie_word_embeddings=False)),
        tensors=[OLDER + "lm_head.weight"],
        beside=["alias-missing"],
    ),
    Near(
        "missing-key",
        "a head that the larger model ties",
        family("llama", drop("lm_head.weight"), inside(tie_word_embeddings=True)),
    ),
    Near(
        "missing-key",
        "a larger model without a head",
        family("llama", drop("lm_head.weight"), inside(class_name="XModel")),
    ),
    Near("part-not-covered", "a model on its own", family("llama")),
    Fires(
        "unknown-architecture",
        "a text stack that no manifest speaks of",
        family("llama", config(model_type="nobody_text"), inside()),
        severity="warning",
        exit=3,
        beside=None,
    ),
    # -- sentence-transformers
    *(
        Fires(
            "part-not-covered",
            f"sentence-transformers, the model in {path or 'the folder itself'}",
            sentence(path),
            severity="note",
            exit=0,
            times=2,
            subject="2_Dense",
            says=["2_Dense/model.safetensors"],
        )
        for path in ("", "0_Transformer")
    ),
    Fires(
        "norm-missing",
        "a sentence-transformers model that lost one",
        sentence(
            "0_Transformer",
            drop("bert.encoder.layer.1.output.LayerNorm.weight", "bert.encoder.layer.1.output.LayerNorm.bias"),
        ),
        tensors=["bert.encoder.layer.1.output.LayerNorm.weight"],
    ),
    Near(
        "part-not-covered",
        "a modules.json of something else",
        family("bert", file("modules.json", '["x", {"type": "y"}]')),
    ),
    # -- diffusers
    Fires(
        "part-not-covered",
        "the one text encoder of a pipeline",
        pipeline("t5"),
        severity="note",
        exit=0,
        times=2,
        subject="model_index.json",
        says=["scheduler (Steps)"],
    ),
    Fires(
        "final-norm-missing",
        "of a text encoder",
        pipeline("t5", edits=(drop("encoder.final_layer_norm.weight"),)),
        tensors=["encoder.final_layer_norm.weight"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_case(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_parts_are_counted(tmp_path: Path) -> None:
    notes = [f for f in inspect(family("llama", inside(NEWER))(tmp_path)).findings if f["name"] == "part-not-covered"]
    assert [(f["subject"], f["observed"], len(f["tensors"])) for f in notes] == [
        ("model.projector", 1, 1), ("model.vision_tower", 3, 3),
    ]  # fmt: skip


def test_a_flat_config_of_an_older_release(tmp_path: Path) -> None:
    """Qwen2-VL kept the text stack's fields beside vision_config, and its keys where a plain model has them."""
    build = family(
        "qwen2", config(model_type="qwen2_vl", vision_config={"depth": 2}), add((4, 4), "visual.merger.weight")
    )
    outcome = inspect(build(tmp_path))
    assert (outcome.status, outcome.grave) == (0, [])
    assert [f["subject"] for f in outcome.findings if f["name"] == "part-not-covered"] == ["visual"]


def lines(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def run(source: Path, *argv: str) -> tuple[int, list[Any], str]:
    """As `inspect`, of a command line that may print several reports."""
    import contextlib
    import io

    from blockaudit.cli.main import run as command

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command(["inspect", str(source), "--format", "json", *argv])
    return status, lines(out.getvalue()), err.getvalue()


def test_each_text_encoder_has_a_report_and_the_worst_status_counts(tmp_path: Path) -> None:
    source = pipeline("t5", "bert", edits=(drop("bert.encoder.layer.1.output.LayerNorm.weight"),))(tmp_path)
    status, reports, _ = run(source)
    assert status == 1
    assert [(r["subject"]["source"], r["verdict"]) for r in reports] == [
        (f"{source}/text_encoder", "accepted"), (f"{source}/text_encoder_2", "rejected"),
    ]  # fmt: skip
    assert {f["subject"] for f in reports[0]["findings"] if f["name"] == "part-not-covered"} == {
        "model_index.json", "text_encoder_2", "unet",
    }  # fmt: skip


def test_a_text_encoder_that_no_manifest_speaks_of_is_a_note_beside_one_that_is_known(tmp_path: Path) -> None:
    source = pipeline("bert", "t5")(tmp_path)
    settings = json.loads((source / "text_encoder/config.json").read_text())
    (source / "text_encoder/config.json").write_text(json.dumps(settings | {"model_type": "x", "architectures": ["X"]}))
    outcome = inspect(source)
    assert outcome.report is not None
    assert outcome.report["subject"]["source"] == f"{source}/text_encoder_2"
    assert "text_encoder" in [f["subject"] for f in outcome.findings if f["name"] == "part-not-covered"]


def test_a_sub_folder_is_a_source_of_its_own(tmp_path: Path) -> None:
    outcome = inspect(pipeline("t5", "t5")(tmp_path) / "text_encoder_2")
    assert (outcome.status, outcome.grave) == (0, [])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../outside", "leads out of the folder"),
        ("/tmp", "leads out of the folder"),
        ("linked", "leads out of the folder"),
    ],
)
def test_a_module_outside_the_folder_is_not_opened(path: str, says: str, tmp_path: Path) -> None:
    family("bert")(tmp_path / "outside")
    folder = tmp_path / "folder"
    folder.mkdir()
    os.symlink(tmp_path / "outside", folder / "linked")
    (folder / "modules.json").write_text(modules((path, "Transformer")))
    status, reports, err = run(folder)
    assert (status, reports) == (2, [])
    assert says in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", '[{"type": 1}]', '["\\ud800"]', "[" * 2000, ""])
def test_a_broken_list_of_modules_names_nothing(text: str, tmp_path: Path) -> None:
    source = family("bert", file("modules.json", text))(tmp_path)
    assert inspect(source).status == 0


def test_a_pipeline_without_a_text_encoder_is_refused_in_one_line(tmp_path: Path) -> None:
    status, reports, err = run(pipeline()(tmp_path))
    assert (status, reports) == (2, [])
    assert "a diffusers pipeline without a text model" in err


def test_two_encoders_in_python_are_named(tmp_path: Path) -> None:
    import blockaudit
    from blockaudit import pipeline as conductor
    from blockaudit.errors import RequestError

    source = pipeline("t5", "t5")(tmp_path)
    assert conductor.models_of(source) == ("text_encoder", "text_encoder_2")
    with pytest.raises(RequestError, match=r"2 text models \(text_encoder, text_encoder_2\)"):
        blockaudit.inspect(source)
    assert blockaudit.inspect(source, part="text_encoder_2").subject.source == f"{source}/text_encoder_2"

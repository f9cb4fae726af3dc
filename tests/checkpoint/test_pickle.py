from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from blockaudit.records.checkpoint import TensorHeader
from tests.checkpoint.build import only, opened, torch_zip

PROTO2 = b"\x80\x02"
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"


def text(word: str) -> bytes:
    raw = word.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def tensor(size: bytes = b"K\x02K\x03\x86", stride: bytes = b"K\x03K\x01\x86", offset: bytes = b"K\x00") -> bytes:
    """The opcodes of a float32 tensor over the storage '0', which has six elements."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + STORAGE
        + offset
        + size
        + stride
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def state(*items: bytes) -> bytes:
    return PROTO2 + b"}(" + b"".join(items) + b"u."


DATA = struct.pack("<6f", *range(6))


def zipped(path: Path, pickled: bytes) -> Path:
    return torch_zip(path / "m.bin", pickled, {"0": DATA})


def legacy(path: Path, *, count: int = 6, data: bytes = DATA, keys: bytes = b"](X\x01\x00\x00\x000e") -> Path:
    magic = PROTO2 + b"\x8a\x0a" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little") + b"."
    system = PROTO2 + b"}X\x0d\x00\x00\x00little_endian\x88s."
    path = path / "m.bin"
    path.write_bytes(
        magic
        + PROTO2
        + b"M\xe9\x03."
        + system
        + state(text("w"), tensor())
        + PROTO2
        + keys
        + b"."
        + struct.pack("<q", count)
        + data
    )
    return path


def refused(path: Path) -> tuple[str, Any]:
    ckpt = opened(path)
    fault = only(ckpt)
    assert not ckpt.readable
    assert ckpt.tensors == {}
    assert "\n" not in fault.message
    assert len(fault.message) < 500
    return fault.rule, fault.observed


def raw(path: Path, key: str = "w") -> bytes:
    ckpt = opened(path)
    start, end = ckpt.tensors[key].data_offsets
    assert ckpt.owner[key].data_start == 0
    return path.read_bytes()[start:end]


def test_a_zip_container(tmp_path: Path) -> None:
    path = zipped(tmp_path, state(text("w"), tensor(), text("step"), b"K\x07"))
    ckpt = opened(path)
    assert ckpt.faults == ()
    assert (ckpt.format, ckpt.files[0].container) == ("torch", "torch-zip")
    assert (ckpt.tensors["w"].dtype, ckpt.tensors["w"].shape, list(ckpt.tensors)) == ("F32", (2, 3), ["w"])
    assert raw(path) == DATA


def test_a_legacy_container(tmp_path: Path) -> None:
    path = legacy(tmp_path)
    ckpt = opened(path)
    assert ckpt.faults == ()
    assert ckpt.files[0].container == "torch-legacy"
    assert raw(path) == DATA


def test_views_aliases_and_strides(tmp_path: Path) -> None:
    row = tensor(b"K\x03\x85", b"K\x01\x85", b"K\x03")
    column = tensor(b"K\x02\x85", b"K\x03\x85", b"K\x01")
    path = zipped(tmp_path, state(text("w"), tensor(), text("row"), row, text("col"), column))
    ckpt = opened(path)
    file = ckpt.files[0]
    assert raw(path, "row") == DATA[12:]
    assert ckpt.tensors["col"].data_offsets[0] == ckpt.tensors["w"].data_offsets[0] + 4
    assert ckpt.tensors["col"].nbytes == 16  # from element 1 to element 4
    assert file.strided == {"col"}
    assert file.storages == {"w": "0", "row": "0", "col": "0"}


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "module", "model_state_dict"])
def test_a_nested_state_dict(tmp_path: Path, wrapper: str) -> None:
    inner = b"}(" + text("w") + tensor() + b"u"
    ckpt = opened(
        zipped(tmp_path, state(text("epoch"), b"K\x01", text(wrapper), inner, text("lr"), tensor(b")", b")")))
    )
    assert list(ckpt.tensors) in (["w"], ["lr"])
    two = b"}(" + text("w") + tensor() + text("v") + tensor() + b"u"
    ckpt = opened(zipped(tmp_path, state(text(wrapper), two, text("lr"), tensor(b")", b")"))))
    assert list(ckpt.tensors) == ["w", "v"]
    assert ckpt.files[0].metadata == {"blockaudit.unwrapped": wrapper}


def test_metadata_of_a_state_dict_is_dropped(tmp_path: Path) -> None:
    attribute = b"}" + text("_metadata") + b"}sb"
    pickled = PROTO2 + b"ccollections\nOrderedDict\n)R(" + text("w") + tensor() + b"u" + attribute + b"."
    assert opened(zipped(tmp_path, pickled)).faults == ()


def test_other_keys_than_strings_are_left_out(tmp_path: Path) -> None:
    ckpt = opened(zipped(tmp_path, state(b"K\x01", tensor(), b"K\x01K\x02\x86", tensor(), text("w"), tensor())))
    assert list(ckpt.tensors) == ["w"]


class Evil:
    def __init__(self, function: Any, *args: Any) -> None:
        self.parts = function, args

    def __reduce__(self) -> Any:
        return self.parts


def _evil(canary: Path) -> dict[str, bytes]:
    command = f"touch {canary}"
    attacks: dict[str, bytes] = {
        "os.system": pickle.dumps(Evil(os.system, command)),
        "eval": pickle.dumps({"w": Evil(eval, f"open({str(canary)!r}, 'w')")}, 2),
        "exec in protocol 0": pickle.dumps(Evil(exec, f"open({str(canary)!r}, 'w')"), 0),
        "open": pickle.dumps(Evil(open, str(canary), "w")),
        "INST": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + command.encode() + b"'\no.",
        "NEWOBJ": PROTO2 + b"cos\nsystem\n" + text(command) + b"\x85\x81.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(command) + b"\x85R.",
        "never called": PROTO2 + b"}" + text("w") + b"cposix\nsystem\ns.",
        "torch.load": PROTO2 + b"ctorch\nload\n" + text(str(canary)) + b"\x85R.",
        "load from bytes": PROTO2 + b"ctorch.storage\n_load_from_bytes\nU\x01x\x85R.",
        "getattr": PROTO2 + b"c__builtin__\ngetattr\nctorch\nFloatStorage\n" + text("x") + b"\x86R.",
        "a dotted name": b"\x80\x04\x8c\x05torch\x8c\x14serialization.os.sys\x93.",
        "setstate": PROTO2 + b"ctorch\nFloatStorage\n}" + text("__setstate__") + b"K\x01sb.",
        "numpy": PROTO2 + b"cnumpy.core.multiarray\nscalar\n.",
        "extension": PROTO2 + b"\x82\x01.",
    }
    return attacks


@pytest.mark.parametrize("container", ["zip", "legacy", "bare"])
@pytest.mark.parametrize("name", list(_evil(Path("x"))))
def test_nothing_is_executed(tmp_path: Path, name: str, container: str) -> None:
    canary = tmp_path / "canary"
    attack = _evil(canary)[name]
    path = tmp_path / "m.bin"
    if container == "zip":
        torch_zip(path, attack)
    else:
        head = legacy(tmp_path).read_bytes()[:14] if container == "legacy" else b""
        path.write_bytes(head + attack)
    rule, observed = refused(path)
    assert rule == "unsafe-pickle"
    assert observed
    assert not canary.exists()


def test_the_global_is_named(tmp_path: Path) -> None:
    path = torch_zip(tmp_path / "m.bin", pickle.dumps(Evil(os.system, "true")))
    assert refused(path) == ("unsafe-pickle", f"{os.system.__module__}.system")


HUGE: dict[str, bytes] = {
    "memo index": PROTO2 + b"}r\xff\xff\xff\xff.",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**63 + 5) + b"x.",
    "LONG4": PROTO2 + b"\x8b\xff\xff\xff\x7fx.",
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "no stop": PROTO2 + b"}" * 1000,
    "empty stack": PROTO2 + b"0000.",
    "a memo that is not there": PROTO2 + b"h\x07.",
    "long text line": b"I" + b"1" * 5000 + b"\n.",
    "nothing": b"",
    "marks": PROTO2 + b"(" * 1000 + b".",
}


@pytest.mark.parametrize("container", ["zip", "bare"])
@pytest.mark.parametrize("name", HUGE)
def test_huge_and_broken_pickles(tmp_path: Path, name: str, container: str) -> None:
    path = tmp_path / "m.pt"
    if container == "zip":
        torch_zip(path, HUGE[name])
    else:
        path.write_bytes(HUGE[name])
    tracemalloc.start()
    rule, _ = refused(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rule in ("unreadable-file", "truncated-file")
    assert peak < 20 << 20


def test_cycles_and_sharing_do_not_hang(tmp_path: Path) -> None:
    loop = PROTO2 + b"}q\x00" + text("model") + b"h\x00s" + text("w") + tensor() + b"s."
    assert list(opened(zipped(tmp_path, loop)).tensors) == ["w"]
    self_list = PROTO2 + b"]q\x00h\x00a."
    assert refused(zipped(tmp_path, self_list))[0] == "unreadable-file"
    doubled = b")" + b"2\x86" * 200  # 2 ** 200 leaves
    assert list(opened(zipped(tmp_path, state(text("x"), doubled, doubled, b"N", text("w"), tensor()))).tensors) == [
        "w"
    ]
    assert refused(zipped(tmp_path, PROTO2 + doubled + b"."))[0] == "unreadable-file"


BAD_TENSORS: dict[str, bytes] = {
    "past its storage": tensor(b"K\x07\x85", b"K\x01\x85"),
    "offset past its storage": tensor(offset=b"K\x01"),
    "huge stride": tensor(b"K\x02\x85", b"\x8a\x07\xff\xff\xff\xff\xff\xff\x0f\x85"),
    "negative stride": tensor(b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
    "size is a bool": tensor(b"\x88\x85", b"K\x01\x85"),
    "lengths differ": tensor(b"K\x02\x85", b")"),
    "size is a number": tensor(b"K\x02", b"K\x01"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_that_do_not_fit(tmp_path: Path, name: str) -> None:
    assert refused(zipped(tmp_path, state(text("w"), BAD_TENSORS[name])))[0] in ("corrupt-header", "unreadable-file")


def test_a_name_that_is_half_a_surrogate(tmp_path: Path) -> None:
    name = b"X\x03\x00\x00\x00\xed\xa0\x80"
    assert refused(zipped(tmp_path, state(name, tensor())))[0] == "corrupt-header"


def test_a_legacy_file_that_ends_early(tmp_path: Path) -> None:
    path = legacy(tmp_path, data=DATA[:-4])
    fault = only(opened(path))
    size = path.stat().st_size
    assert (fault.rule, fault.expected, fault.observed) == ("truncated-file", size + 4, size)


def test_a_legacy_storage_of_another_length(tmp_path: Path) -> None:
    fault = only(opened(legacy(tmp_path, count=5)))
    assert (fault.rule, fault.expected, fault.observed) == ("corrupt-header", 6, 5)
    assert refused(legacy(tmp_path, keys=b"]"))[0] == "corrupt-header"
    assert refused(legacy(tmp_path, keys=b"](X\x01\x00\x00\x001e"))[0] == "unreadable-file"


def test_a_zip_that_ends_early(tmp_path: Path) -> None:
    path = zipped(tmp_path, state(text("w"), tensor()))
    path.write_bytes(path.read_bytes()[:-30])
    assert refused(path)[0] == "truncated-file"


def test_a_storage_is_missing_short_or_compressed(tmp_path: Path) -> None:
    pickled = state(text("w"), tensor())
    assert refused(torch_zip(tmp_path / "a.bin", pickled))[0] == "corrupt-header"
    assert refused(torch_zip(tmp_path / "b.bin", pickled, {"0": DATA[:-1]}))[0] == "corrupt-header"
    with zipfile.ZipFile(tmp_path / "c.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/data/0", DATA * 100)
    assert refused(tmp_path / "c.bin")[0] == "unreadable-file"


def test_a_pickle_that_claims_to_be_larger_than_can_be(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", state(text("w"), tensor()))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 1 << 31)
    path.write_bytes(content)
    assert refused(path)[0] == "unreadable-file"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.bin", "w") as archive:
        archive.writestr("m/data.pkl", state(text("w"), tensor()))
        archive.writestr("m/data/0", DATA)
        archive.writestr("m/data/0", DATA)
    assert refused(tmp_path / "m.bin")[0] == "corrupt-header"


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"], "TorchScript"),
        (["m/.data/extern_modules", "m/model/model.pkl"], "torch.package"),
        (["a.npy", "b.npy"], "NumPy"),
        (["word/document.xml"], "no PyTorch state dict"),
    ],
)
def test_other_zip_archives(tmp_path: Path, names: list[str], word: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    fault = only(opened(tmp_path / "m.pt"))
    assert fault.rule == "unreadable-file"
    assert word in fault.message


def test_the_old_tar_container(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(bytes(257) + b"ustar" + bytes(300))
    assert "tar" in only(opened(tmp_path / "m.pt")).message


def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    pickled = state(text("state"), b"}", text("param_groups"), b"]")
    assert refused(zipped(tmp_path, pickled))[0] == "sharded-training-state"


def test_big_endian_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("m/data.pkl", state(text("w"), tensor()))
        archive.writestr("m/byteorder", "big")
    (tmp_path / "m.bin").write_bytes(buffer.getvalue())
    assert refused(tmp_path / "m.bin")[0] == "unreadable-file"


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "float8_e4m3fn", "uint16"])
def test_files_that_torch_writes(tmp_path: Path, dtype: str, new: bool) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    tensors = {
        "whole": base,
        "rows": base[1:3],
        "turned": base.t(),
        "scalar": base[2, 3],
        "none": base[:0],
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    path = tmp_path / "m.pt"
    torch.save({"epoch": 3, "state_dict": OrderedDict(tensors)}, path, _use_new_zipfile_serialization=new)
    ckpt = opened(path)
    assert ckpt.faults == ()
    assert {key: t.shape for key, t in ckpt.tensors.items()} == {key: tuple(t.shape) for key, t in tensors.items()}
    for key in ("whole", "rows", "scalar", "none", "parameter"):
        value = tensors[key].detach().reshape(-1)
        assert raw(path, key) == bytes(value.view(torch.uint8).tolist() if value.numel() else b"")
    assert ckpt.files[0].strided == {"turned"}
    assert ckpt.tensors["turned"].data_offsets == ckpt.tensors["whole"].data_offsets


def test_a_whole_module_is_refused_by_its_class(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pt")
    assert refused(tmp_path / "m.pt") == ("unsafe-pickle", "torch.nn.modules.linear.Linear")


def test_sharded_torch(tmp_path: Path) -> None:
    import json

    torch_zip(tmp_path / "pytorch_model-00001-of-00001.bin", state(text("w"), tensor()), {"0": DATA})
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {"total_size": 24}, "weight_map": {"w": "pytorch_model-00001-of-00001.bin"}})
    )
    ckpt = opened(tmp_path)
    assert (ckpt.faults, ckpt.format) == ((), "sharded-torch")
    assert isinstance(ckpt.tensors["w"], TensorHeader)


BOMBS: dict[str, bytes] = {
    "dictionaries": PROTO2 + b"}" * (3 << 20) + b".",
    "marks": PROTO2 + b"(" * (3 << 20) + b".",
    "nested tuples": PROTO2 + b")" + b"\x85" * (3 << 20) + b".",
    "duplicates": PROTO2 + b"}" + b"2" * (3 << 20) + b".",
    "doubled lists": PROTO2 + b"]" + b"(K\x01K\x02eq\x00(h\x00h\x00h\x00e" * 1000 + b".",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("compressed", [True, False])
def test_bombs(tmp_path: Path, name: str, *, compressed: bool) -> None:
    path = tmp_path / "m.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", BOMBS[name])
    assert refused(path)[0] == "unreadable-file"

"""The least that an audit of headers has to do, in bare Python: open every file, read every header, parse it all."""

import json
import struct
import sys


def main(folder: str) -> None:
    with open(f"{folder}/model.safetensors.index.json", "rb") as file:
        index = json.loads(file.read())
    headers: list[dict[str, object]] = []
    for shard in sorted(set(index["weight_map"].values())):
        with open(f"{folder}/{shard}", "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            headers.append(json.loads(file.read(length)))
    print(sum(len(header) for header in headers))


main(sys.argv[1])

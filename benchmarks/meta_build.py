"""The least that reading a graph has to do: import the class that config.json names, build it on the meta device."""

import json
import sys
from typing import Any

import torch
import transformers


def main(folder: str) -> None:
    with open(f"{folder}/config.json", "rb") as file:
        data = json.loads(file.read())
    auto: Any = transformers.AutoConfig
    config = auto.for_model(**data)
    with torch.device("meta"):
        getattr(transformers, data["architectures"][0])(config)


main(sys.argv[1])

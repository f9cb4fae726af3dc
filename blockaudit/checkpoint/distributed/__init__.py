"""Folders that torch.distributed.checkpoint writes: one file of metadata, and files of chunks."""

NAME = ".metadata"
# `Checkpoint.format` of such a folder, and of one that Megatron-core wrote with it.
TORCH, MEGATRON_CORE = "torch-distributed", "megatron-core"

"""Folders that torch.distributed.checkpoint writes: one file of metadata, and files of chunks."""

NAME = ".metadata"

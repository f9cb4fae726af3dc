"""Descriptions of architectures that other tools keep, read into block manifests."""

from blockaudit.manifest.importing.mergekit import from_mergekit as from_mergekit

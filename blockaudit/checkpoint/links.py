"""Links in a folder that nobody vouches for: one that leads out of it names a file that is no part of the checkpoint.

A repository that is cloned brings links along, and `config.json -> ~/.docker/config.json` would be shown in a report.
Hugging Face's cache is made of links too: those lead to the blobs of the same repository, and are followed.
"""

from __future__ import annotations

import os

from blockaudit.checkpoint.files import REMOTE

LEADS_OUT = "it is a link that leads out of the folder, and was not followed (put the file itself there)"
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"


def leads_out(folder: str, name: str) -> bool:
    """Whether the file of this name in a folder is a link to something outside of it. Never for a folder on a hub."""
    path = os.path.join(folder, name)
    if folder.startswith(REMOTE) or not os.path.islink(path):
        return False
    home, target = os.path.realpath(folder or "."), os.path.realpath(path)
    # A link to nothing opens nothing: that the file is missing says more.
    return os.path.exists(target) and not (_below(home, target) or _is_blob(home, target))


def _below(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_blob(home: str, target: str) -> bool:
    """Whether a file is in `blobs` of the repository whose `snapshots` the folder is in."""
    repository, snapshots, _ = f"{home}{os.sep}".rpartition(f"{os.sep}{_SNAPSHOTS}{os.sep}")
    return bool(snapshots) and os.path.dirname(target) == os.path.join(repository, _BLOBS)

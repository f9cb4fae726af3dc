"""A conversion as a transaction: TARGET is whole or is not there, and a run that was ended is taken up by the next."""

from __future__ import annotations

import hashlib
import os

import msgspec

from blockaudit.errors import RequestError
from blockaudit.migrate.convert import document
from blockaudit.migrate.convert.carry import carried
from blockaudit.migrate.convert.existing import finished
from blockaudit.migrate.convert.finish import described, published
from blockaudit.migrate.convert.journal import Journal
from blockaudit.migrate.convert.layout import lay_out
from blockaudit.migrate.convert.request import Outcome, RejectedError, Request, Running
from blockaudit.migrate.convert.run import Hashes, write_weights
from blockaudit.migrate.convert.source import Source
from blockaudit.migrate.convert.twins import verify
from blockaudit.migrate.convert.workplace import PART, Workplace, check_places, partial_of, unwritable
from blockaudit.records.conversion import Conversion


def convert(request: Request) -> Outcome:
    """Carry a plan out. Raises RequestError (TARGET is not there), or the error of a proof that failed (`proof`).

    And what `Request.conform` raises: nothing is kept of what it rejects with RejectedError.
    """
    checkpoint, target = request.checkpoint, request.target
    check_places(checkpoint.source, target)
    along = carried(checkpoint)
    source = Source(checkpoint, tuple(os.path.join(checkpoint.folder, name) for name in along))
    try:
        files = lay_out(request.plan, source.place, request.most)
        known = document.plan_sha256(request.plan, request.most)
        there = finished(target, known, source)
        if there is not None:
            return _was_there(there, target)
        with Workplace(target) as place:
            return _carried_out(Running(request, source, along, files, known, place))
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        source.close()


def _was_there(conversion: Conversion, target: str) -> Outcome:
    """TARGET is this conversion. Takes away what a run left that was ended right after the rename."""
    if os.path.exists(partial_of(target)):
        with Workplace(target) as place:
            place.remove()
    return Outcome(conversion, was_there=True)


def _carried_out(running: Running) -> Outcome:
    if os.path.lexists(running.request.target):
        # It came between the look at it and the lock.
        raise RequestError(f"{running.request.target}: it was made by another process just now: run again")
    journal = _journal(running)
    try:
        remarks = _begun(running, journal)
        hashes = _weights(running, journal)
    finally:
        journal.close()
    try:
        conversion = published(running, described(running, hashes))
    except RejectedError:
        running.place.remove()  # it is whole, and wrong
        raise
    running.place.remove()
    return Outcome(conversion, remarks=remarks)


def _weights(running: Running, journal: Journal) -> Hashes:
    request, source = running.request, running.source
    running.place.check_room(sum(file.size for file in running.files))
    twins = verify(request.plan.verify, source, request.hashing)
    return write_weights(
        request.plan,
        running.files,
        source,
        running.place,
        journal,
        twins,
        hashing=request.hashing,
        durable=request.durable,
        progress=request.progress,
    )


def _journal(running: Running) -> Journal:
    """The journal of this plan on this source: another size, time or inode of any file makes it another's."""
    source = running.source
    identities = [(source.names.get(path, path), *what) for path, what in sorted(source.files.identities.items())]
    how = (running.plan_sha256, running.request.hashing, identities)
    key = hashlib.sha256(msgspec.json.encode(how)).hexdigest()
    return Journal(running.place.folder, key, running.request.durable)


def _begun(running: Running, journal: Journal) -> tuple[str, ...]:
    """Make the folder one that holds only what this conversion has written. Returns what there is to say."""
    target, folder = running.request.target, os.path.basename(running.place.folder)
    if journal.resumed:
        _unfinish(running)
        return (f"{target}: taken up where an earlier run stood ({folder})",)
    running.place.clear()
    if journal.discarded:
        return (f"{target}: an earlier run by another map, or of a source that has changed, is discarded ({folder})",)
    return ()


def _unfinish(running: Running) -> None:
    """Take the final names of weights back, where the earlier run was ended between them and the rename."""
    place, weights = running.place, {file.name for file in running.files}
    for name in os.listdir(place.whole):
        if name in weights:
            os.rename(place.path(name), place.path(name + PART))
        elif name.removesuffix(PART) not in weights:
            os.unlink(place.path(name))

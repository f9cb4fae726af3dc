"""Contract fields, and what a witness says of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Witness = Literal["declared", "stored", "executed", "measured"]
WITNESSES: tuple[Witness, ...] = ("declared", "stored", "executed", "measured")


class Statement(msgspec.Struct, frozen=True):
    """One witness's value for one field.

    `bytes_read` names the bytes that the value was read from (`config.json: rms_norm_eps`); two statements with the
    same `bytes_read` are one witness (contract section 1). One that is not `known` only names the field: the witness
    has it and cannot read its value. `layers` names the layers that it speaks of, where they are not all
    (`0-3, 7`): the numbers may show a value in one layer that no other has.
    """

    value: Any
    evidence: str
    bytes_read: str
    known: bool = True
    layers: str = ""


class Testimony(msgspec.Struct, frozen=True):
    """What one witness says: field -> statement. A field that is absent is unknown to the witness.

    A statement with value None says that there is none (no softcap); it is not the same as silence.
    """

    witness: Witness
    statements: dict[str, Statement] = {}


class Executed(msgspec.Struct, frozen=True):
    """The executed witness's testimony.

    `failure` says why there is none; `unread` what of the graph fitted no reading. `class_name` is the class that was
    run; `ignored` are fields of config.json that it never reads (None: not known), `idle` parameters that none of its
    operators reads. `random` are dropouts that act in eval, `misshapen` joins of the stream that are no
    sum of two values of one shape.
    """

    testimony: Testimony
    failure: str = ""
    unread: tuple[str, ...] = ()
    class_name: str = ""
    ignored: tuple[str, ...] | None = None
    idle: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()


class ContractRow(msgspec.Struct, frozen=True):
    """One field of the contract, by witness. `agrees` is None where fewer than two witnesses read different bytes."""

    field: str
    statements: dict[Witness, Statement]
    agrees: bool | None
    required: bool = False
    wants: Witness | None = None  # the witness that the audit's level requires to speak

    def value(self, witness: Witness) -> Any:
        said = self.statements.get(witness)
        return None if said is None else said.value

    @property
    def known(self) -> bool:
        """Whether a witness could speak to the field: the one that the level requires, else any."""
        return self.wants in self.statements if self.wants else bool(self.statements)

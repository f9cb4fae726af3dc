"""A first map from a source to a target manifest: what is proved is a rule, what is not is named and left out."""

from blockaudit.migrate.draft.known import draft_known as draft_known
from blockaudit.migrate.draft.records import Drafted as Drafted
from blockaudit.migrate.draft.records import Undecided as Undecided
from blockaudit.migrate.draft.shapes import draft_shapes as draft_shapes
from blockaudit.migrate.draft.source import Chosen as Chosen
from blockaudit.migrate.draft.source import chosen as chosen
from blockaudit.migrate.draft.source import container as container

"""Maps that others keep as code or as key mappings, read into ours."""

from blockaudit.migrate.importing.imported import Imported as Imported
from blockaudit.migrate.importing.imported import imported as imported
from blockaudit.migrate.importing.key_mapping import of_file as of_file
from blockaudit.migrate.importing.library import of_transformers as of_transformers

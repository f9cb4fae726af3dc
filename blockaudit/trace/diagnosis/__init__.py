"""Why a candidate differs: edits of the manifest, searched for and tried on the numbers."""

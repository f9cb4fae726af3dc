"""Migration maps: proved on headers (`check`), and carried out as a transaction (`convert`)."""

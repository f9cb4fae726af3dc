"""`convert`: a plan carried out as a transaction, with proof of every step."""

"""A block manifest out of executed facts: a class is built many times over, tiny, and what follows what is measured."""

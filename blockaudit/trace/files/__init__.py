"""Traces as files: written, read, compared, and run as candidates."""

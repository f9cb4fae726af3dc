"""The library's drafted manifests: made from the classes of the installed transformers, proved, and written."""

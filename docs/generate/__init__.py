"""The reference pages of the documentation, written from code, schemas and manifests."""

"""The measured witness: a candidate run beside the reference, site by site."""

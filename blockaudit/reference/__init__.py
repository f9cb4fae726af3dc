"""The manifest, executed: norms, attention, feed-forward and block assembly, readable beside the papers."""

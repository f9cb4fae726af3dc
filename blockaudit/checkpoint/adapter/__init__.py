"""PEFT adapters: their keys, their settings, and whether the two say the same."""

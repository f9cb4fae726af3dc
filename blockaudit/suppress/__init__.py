"""Waivers and baselines: findings that are there, are shown, and do not count."""

"""Autocast's regions: what is in them, and what should not be."""

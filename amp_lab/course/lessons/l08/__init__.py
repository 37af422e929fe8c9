"""Lesson 08: what AMP buys."""

"""Lesson 02: how FP16 fails."""

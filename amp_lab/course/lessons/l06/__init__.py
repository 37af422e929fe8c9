"""Lesson 06: autocast."""

"""Lesson 03: mixed precision by hand."""

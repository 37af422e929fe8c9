"""Lesson 04: static loss scaling."""

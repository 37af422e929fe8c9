"""Lesson 05: dynamic loss scaling."""

"""Lesson 09: a Trainer."""

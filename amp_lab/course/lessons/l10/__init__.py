"""Lesson 10: several processes, mixed precision."""

"""Lesson 07: GradScaler in practice."""

"""Lesson 01: number formats."""

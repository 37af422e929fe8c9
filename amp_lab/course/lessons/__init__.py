"""One package per lesson: `lNN/text.py` holds its words, `lNN/checks.py` what its exercises are judged by."""

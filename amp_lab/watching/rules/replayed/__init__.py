"""What came of a batch that was run again."""

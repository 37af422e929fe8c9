"""Pictures: numbers in, figure out. Nothing is computed here."""

"""A batch is run again, to see where its numbers leave their format, and whether another loss scale would help."""

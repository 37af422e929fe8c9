"""What counts steps, and counts those that were skipped, too: schedulers, averages, sums."""

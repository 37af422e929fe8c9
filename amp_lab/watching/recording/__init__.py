"""What happens in a training loop, noted while it runs: events, in bounded memory, with every hook taken off again."""

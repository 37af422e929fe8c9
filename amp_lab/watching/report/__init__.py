"""What was found, told: root causes first, their consequences under them, as text, in a notebook, with Rich."""

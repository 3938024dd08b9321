"""Six reinforcement-learning policies in environments that have changed since they were trained."""

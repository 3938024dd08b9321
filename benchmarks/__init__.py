"""Speed and memory, always as a ratio of two things measured side by side in one run."""

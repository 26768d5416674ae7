"""The clients: what they hold and can do, who takes part, and their local work."""

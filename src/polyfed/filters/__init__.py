"""Server filters: what an update may pass before it moves the server's model."""

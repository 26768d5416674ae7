"""A federation whose clients are elsewhere: a client's round in two halves, bytes between them."""

"""The rounds: the loop, evaluation, metrics, the ledger of bytes and seconds, progress."""

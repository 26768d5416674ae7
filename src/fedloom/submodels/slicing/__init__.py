"""Slice a smaller network out of a module, and move values between the two."""

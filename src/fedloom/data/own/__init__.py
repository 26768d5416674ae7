"""A user's own data: arrays, tables, folders."""

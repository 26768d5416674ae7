"""What the committed lines of results say: tables, pictures, and the papers' claims beside them."""

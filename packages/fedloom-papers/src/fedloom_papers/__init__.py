"""The experiments of five papers and of FLamby: recipes, tables, claims, runs and result pages.

Nothing is imported here, so that `fedloom --help` stays quick; catalogue.py has the tables.
"""

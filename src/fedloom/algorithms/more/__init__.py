"""Methods that none of the five papers has or compares with: one file per paper.

They go by name like all others. One page of the docs holds them, docs/algorithms/more.md.
"""

"""Benchmarks: the joins without Spark, on Spark beside Spark's own join, the build of a master, and memory.

Everything compares what it measured in the same run; `millstream bench` prints the tables and writes `docs/`.
"""

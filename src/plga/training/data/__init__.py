"""Data for training: ``settings`` says what, ``dataset`` opens it.

From the bottom: a source (``lines``, ``parquet``, ``hub``) gives ``rows``; ``documents`` are the rows of one side and
one process that hold text; ``packing`` cuts their tokens into windows; ``stream`` hands these out without end and can
go on from any place. Python's own sources (``standard_library``) are held in memory and drawn from (``windows``).
"""

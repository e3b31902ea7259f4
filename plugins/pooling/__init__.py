"""Rows that stand for blocks of positions, and indexers that choose blocks by them: operations with kernels of their own."""

from augury.plugins.pooling.blocks import PoolIndexer, Pooling

__all__ = ["PoolIndexer", "Pooling"]

"""Qwen 4, whose memory of n-grams is a block, with operations and kernels, that no backend knows."""

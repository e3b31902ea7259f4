"""DeepSeek 4, whose attention is a block that no backend knows."""

"""augury: speculative decoding for GGUF language models, bit-identical to plain decoding."""

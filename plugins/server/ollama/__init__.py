"""Ollama's interface, below `/api`: conversations, prompts, embeddings, and what there is to know of models."""

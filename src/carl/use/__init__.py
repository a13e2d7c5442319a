"""What is done with a trained encoder: embeddings, exports, search, and the choice of a subset."""

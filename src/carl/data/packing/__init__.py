"""Images are decoded once and kept in the cache, all of the same size."""

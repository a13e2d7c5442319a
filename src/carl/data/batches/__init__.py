"""Training batches from packed pixels, from photos on the disk, or from shards."""

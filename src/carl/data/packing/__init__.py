"""Every image decoded once and kept, equal-sized, in the cache."""

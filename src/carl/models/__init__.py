"""Encoders, heads and prototypes."""

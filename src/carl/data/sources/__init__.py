"""Where images come from: one file per kind of source, each giving a listing before any pixel is read."""

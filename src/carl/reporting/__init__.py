"""Pages and tables from run directories; reads files alone, imports no torch."""

"""Options of the source and the sink: read, checked, explained; and load tables' defaults."""

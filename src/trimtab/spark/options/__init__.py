"""Options of the source and the sink: read, checked, explained."""

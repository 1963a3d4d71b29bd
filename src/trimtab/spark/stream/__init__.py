"""The stream reader: what each batch reads, and how far behind it is."""

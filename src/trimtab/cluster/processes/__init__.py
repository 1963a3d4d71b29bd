"""What a node needs as a process of its own: who restarts it, its log, its metrics over HTTP."""

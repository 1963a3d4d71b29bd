"""Groups, seen from a member."""

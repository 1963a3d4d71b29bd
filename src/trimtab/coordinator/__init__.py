"""The coordinator of groups: pure decisions about members, generations and committed offsets."""

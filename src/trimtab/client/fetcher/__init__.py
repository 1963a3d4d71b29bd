"""From the brokers' logs to a consumer's buffer, within KIP-74's limits; and where to begin."""

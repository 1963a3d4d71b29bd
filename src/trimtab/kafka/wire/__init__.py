"""Bytes and messages: Kafka's wire format, and nothing else.

schema   how a message is declared          types        the wire types
codec    messages to bytes and back         messages/    one file per API
framing  frames, headers, the protocol      batch_cy     record batches, compression

Tests of batch_header: test_headers.py
Tests of codec_source, schema, sentinels, types, varint: test_codec.py
"""

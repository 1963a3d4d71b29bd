"""What Kafka says: its messages, errors, records and kinds of options. No sockets, no files.

    wire/          bytes and messages
    errors.py      the errors, and Kafka's codes
    records.py     a record, and where it is stored
    options.py     declares options, and reads given values in their types
    topic_name.py  which names a topic may have
    arguments.py   checks what a caller passes
    notebook.py    tables for notebooks, as all rooms have objects to show

Client and cluster share this room, `balance` and `threads`, and nothing else.

Tests of arguments: tests/unit/client/test_arguments.py
Tests of errors: tests/unit/test_errors.py
Tests of options: tests/unit/client/test_options.py
Tests of records: tests/unit/kafka/wire/test_records.py
Tests of topic_name: tests/unit/cluster/metadata/test_image.py
"""

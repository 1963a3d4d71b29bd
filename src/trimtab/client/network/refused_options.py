"""Options that no client takes: Kafka's without a meaning here, and those of other clients."""

from __future__ import annotations

_JAVA_TLS = "Python's TLS is OpenSSL, which needs no such choice; leave it out"
_PEM_HAS_NO_PASSWORD = "PEM stores have no password of their own; only a key has: ssl.key.password"
_SERIALIZER = (
    "a producer takes a function from an object to bytes, such as str.encode, or an object with"
    " serialize(topic, headers, data)"
)
_DESERIALIZER = (
    "a consumer takes a function from bytes to an object, such as json.loads, or an object with"
    " deserialize(topic, headers, data)"
)

REFUSED = {
    "auto.include.jmx.reporter": "there is no JMX; a client has metrics()",
    "bootstrap.resolve.timeout.ms": (
        "names are resolved whenever a connection is opened, and again until max.block.ms or"
        " default.api.timeout.ms is over; leave it out"
    ),
    "config.providers": "look secrets up in Python and give them as values",
    "enable.metrics.push": (
        "metrics are not pushed to brokers (KIP-714); leave it out. A client has metrics()"
    ),
    "interceptor.classes": "wrap send or poll in a function of your own",
    "metadata.cluster.check.enable": (
        "it needs ApiVersions 5, of Kafka 4.4, which is not spoken yet; leave it out"
    ),
    "metric.reporters": "a client has metrics(), which can be exported to Prometheus",
    "metrics.recording.level": "all metrics are always recorded; leave it out",
    "sasl.client.callback.handler.class": "give sasl.username and sasl.password, or a token",
    "sasl.kerberos.": (
        "Kerberos (GSSAPI) is not to be had; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
    ),
    "sasl.login.": ("a token is asked for again when 80 % of its lifetime is over; leave it out"),
    "sasl.oauthbearer.": (
        "a token is got with the client's id and secret (sasl.oauthbearer.token.endpoint.url); for"
        " another way give a callable that fetches it, as sasl.oauthbearer.token"
    ),
    "security.providers": _JAVA_TLS,
    "ssl.engine.factory.class": _JAVA_TLS,
    "ssl.keymanager.algorithm": _JAVA_TLS,
    "ssl.keystore.password": _PEM_HAS_NO_PASSWORD,
    "ssl.protocol": "name the versions of TLS in ssl.enabled.protocols",
    "ssl.provider": _JAVA_TLS,
    "ssl.secure.random.implementation": _JAVA_TLS,
    "ssl.trustmanager.algorithm": _JAVA_TLS,
    "ssl.truststore.password": _PEM_HAS_NO_PASSWORD,
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "key.deserializer": _DESERIALIZER,
    "value.deserializer": _DESERIALIZER,
}
"""Kafka's options that no client takes, and what to do instead; a name that ends in a dot stands
for all that begin with it."""

_BYTES = tuple(
    f"org.apache.kafka.common.serialization.{name}".lower()
    for name in (
        *("ByteArraySerializer", "ByteArrayDeserializer"),
        *("BytesSerializer", "BytesDeserializer"),
    )
)

NO_OPS = {
    "allow.auto.create.topics": ("false",),
    "bootstrap.resolve.timeout.ms": ("0",),
    "buffer.memory.allocation.strategy": ("incremental",),
    "enable.metrics.push": ("false",),
    "key.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "metadata.cluster.check.enable": ("false",),
    "metrics.recording.level": ("info", "debug", "trace"),
    "retries": ("2147483647",),
    "sasl.kerberos.kinit.cmd": ("/usr/bin/kinit",),
    "sasl.kerberos.min.time.before.relogin": ("60000",),
    "sasl.kerberos.ticket.renew.jitter": ("0.05",),
    "sasl.kerberos.ticket.renew.window.factor": ("0.8",),
    "sasl.login.refresh.buffer.seconds": ("300",),
    "sasl.login.refresh.min.period.seconds": ("60",),
    "sasl.login.refresh.window.factor": ("0.8",),
    "sasl.login.refresh.window.jitter": ("0.05",),
    "sasl.oauthbearer.clock.skew.seconds": ("30",),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("3600000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("10000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("100",),
    "sasl.oauthbearer.jwt.retriever.class": (
        "org.apache.kafka.common.security.oauthbearer.clientcredentialsjwtretriever",
        "org.apache.kafka.common.security.oauthbearer.defaultjwtretriever",
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        "org.apache.kafka.common.security.oauthbearer.clientjwtvalidator",
        "org.apache.kafka.common.security.oauthbearer.defaultjwtvalidator",
    ),
    "sasl.oauthbearer.scope.claim.name": ("scope",),
    "sasl.oauthbearer.sub.claim.name": ("sub",),
    "ssl.keymanager.algorithm": ("sunx509",),
    "ssl.protocol": ("tls", "tlsv1.2", "tlsv1.3"),
    "ssl.trustmanager.algorithm": ("pkix",),
    "value.deserializer": _BYTES,
    "value.serializer": _BYTES,
}
"""Values with which a refused option asks for nothing that is missing, mostly Kafka's defaults: a
configuration that spells them out moves over as it is. Not there: a default that asks for what
is not built, such as `enable.metrics.push=true`."""

_METRICS = "a client has metrics(); read it when you want to"
_ON_DELIVERY = "give on_delivery to send, or call add_done_callback of what send returns"
_PEM_FILE = "one PEM file with the private key and the certificates, as ssl.keystore.location"
_LEAVE_OUT = "there is nothing to set here; leave it out"
_LOG = "trimtab logs with Python's logging, as trimtab.client"


def _here(name: str, note: str = "") -> str:
    return f"here it is {name}{note and ', '}{note}"


FOREIGN = {
    # librdkafka, and so confluent-kafka
    "api.version.request": "versions are agreed on with each broker; leave it out",
    "batch.num.messages": _here("batch.size", "in bytes"),
    "broker.address.family": _LEAVE_OUT,
    "broker.version.fallback": "versions are agreed on with each broker; leave it out",
    "compression.codec": _here("compression.type"),
    "compression.level": _here(
        "compression.gzip.level, compression.lz4.level or compression.zstd.level"
    ),
    "debug": _LOG,
    "delivery.report.only.error": _ON_DELIVERY,
    "dr.cb": _ON_DELIVERY,
    "enable.auto.offset.store": "set enable.auto.commit=false, and commit() offsets",
    "enable.partition.eof": "compare position() with end_offsets()",
    "enable.ssl.certificate.verification": (
        "certificates are always verified; name the one to trust in ssl.truststore.location"
    ),
    "error.cb": _LOG,
    "fetch.message.max.bytes": _here("max.partition.fetch.bytes"),
    "fetch.wait.max.ms": _here("fetch.max.wait.ms"),
    "logger": _LOG,
    "max.in.flight": _here("max.in.flight.requests.per.connection"),
    "message.max.bytes": _here("max.request.size"),
    "message.send.max.retries": _here("retries"),
    "message.timeout.ms": _here("delivery.timeout.ms"),
    "metadata.broker.list": _here("bootstrap.servers"),
    "oauth.cb": _here("sasl.oauthbearer.token", "a callable that returns a token"),
    "partitioner": _here("partitioner.class", "whose default puts keys where Java's producer does"),
    "queue.buffering.max.kbytes": _here("buffer.memory", "in bytes"),
    "queue.buffering.max.messages": _here("buffer.memory", "in bytes; send waits when it is full"),
    "queue.buffering.max.ms": _here("linger.ms"),
    "queued.max.messages.kbytes": _here("fetch.max.bytes", "in bytes"),
    "request.required.acks": _here("acks"),
    "sasl.mechanisms": _here("sasl.mechanism"),
    "security.mechanism": _here("sasl.mechanism"),
    "socket.keepalive.enable": _LEAVE_OUT,
    "socket.nagle.disable": "it is disabled; leave it out",
    "socket.receive.buffer.bytes": _here("receive.buffer.bytes"),
    "socket.send.buffer.bytes": _here("send.buffer.bytes"),
    "socket.timeout.ms": _here("request.timeout.ms"),
    "ssl.ca.location": _here(
        "ssl.truststore.location", "a PEM file with the certificates to trust"
    ),
    "ssl.ca.pem": _here("ssl.truststore.certificates"),
    "ssl.certificate.location": _PEM_FILE,
    "ssl.certificate.pem": _here("ssl.keystore.certificate.chain"),
    "ssl.key.location": _PEM_FILE,
    "ssl.key.pem": _here("ssl.keystore.key"),
    "statistics.interval.ms": _METRICS,
    "stats.cb": _METRICS,
    "sticky.partitioning.linger.ms": (
        "partitions take turns by bytes (KIP-794), not by time; leave it out"
    ),
    "topic.metadata.refresh.interval.ms": _here("metadata.max.age.ms"),
    # kafka-python, aiokafka
    "api.version": "versions are agreed on with each broker; leave it out",
    "api.version.auto.timeout.ms": "versions are agreed on with each broker; leave it out",
    "consumer.timeout.ms": "give timeout_ms to poll",
    "loop": "an AsyncProducer or AsyncConsumer belongs to the loop that runs when it is made",
    "max.batch.size": _here("batch.size"),
    "metrics.enabled": "all metrics are always recorded; leave it out",
    "sasl.oauth.token.provider": _here("sasl.oauthbearer.token", "a callable that returns a token"),
    "sasl.plain.password": _here("sasl.password"),
    "sasl.plain.username": _here("sasl.username"),
    "selector": _LEAVE_OUT,
    "socket.options": "see send.buffer.bytes and receive.buffer.bytes",
    "ssl.cafile": _here("ssl.truststore.location", "a PEM file with the certificates to trust"),
    "ssl.certfile": _PEM_FILE,
    "ssl.check.hostname": _here("ssl.endpoint.identification.algorithm", "https or empty"),
    "ssl.ciphers": _here("ssl.cipher.suites", "by their IANA names"),
    "ssl.context": "name files: ssl.truststore.location and ssl.keystore.location",
    "ssl.keyfile": _PEM_FILE,
    "ssl.password": _here("ssl.key.password"),
    # Kafka's own of long ago
    "block.on.buffer.full": _here("max.block.ms", "how long send may wait"),
    "broker.list": _here("bootstrap.servers"),
    "metadata.fetch.timeout.ms": _here("max.block.ms"),
    "timeout.ms": _here("request.timeout.ms"),
}
"""Options of other clients, dotted, and what to write here."""

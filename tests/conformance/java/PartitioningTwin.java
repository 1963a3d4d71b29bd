package org.apache.kafka.clients.producer.internals;

import org.apache.kafka.clients.MetadataSnapshot;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.internal.CompressionRatioEstimator;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.LogContext;

import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;

/**
 * Apache Kafka's half of test_partitioning_differential.py: the real RecordAccumulator and
 * BuiltInPartitioner, driven by the scenario of a seed.
 *
 * `Scenario` in that file runs the same scenario with trimtab's accumulator and the same random
 * numbers: change both together. This class is in Kafka's package because the hooks of Kafka's own
 * tests (randomPartition, createBuiltInPartitioner) are visible only there.
 *
 * Arguments: first seed, number of seeds, operations per seed, and "trace" to print each operation.
 * Prints for each seed a hash of all choices and the counts of records and random numbers; with
 * "trace", a line for each operation before that.
 */
public final class PartitioningTwin {
    private static final String TOPIC = "topic";
    private static final int MAX_NODES = 6;
    private static final String[] RACKS = {null, "a", "b", "c"};
    private static final int[] BATCH_SIZES = {
        1, 2, 70, 100, 128, 333, 512, 1024, 4096, 16384, 16384, 65536, 262144};
    private static final String[] CODECS = {"none", "none", "none", "lz4", "snappy"};
    private static final int[] TIMEOUTS = {0, 0, 3, 40};
    private static final byte[] ZEROS = new byte[1 << 20];

    /** Knuth's 64-bit random number generator; uses its 31 best bits. */
    private static final class Chance {
        private long state;
        long draws;

        Chance(long seed) {
            state = seed * 0x9E3779B97F4A7C15L + 1;
            next();
        }

        int next() {
            draws++;
            state = state * 6364136223846793005L + 1442695040888963407L;
            return (int) (state >>> 33);
        }

        int below(int bound) {
            return next() % bound;
        }
    }

    private static final class Clock implements Time {
        long now = 1_700_000_000_000L;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            now += ms;
        }

        @Override
        public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }

    /** Notes the partition of a record. */
    private static final class Choice implements RecordAccumulator.AppendCallbacks {
        int partition;

        @Override
        public void setPartition(int partition) {
            this.partition = partition;
        }

        @Override
        public void onCompletion(RecordMetadata metadata, Exception exception) {
        }
    }

    /** Unlimited memory; of a huge batch only the written part is allocated. */
    private static final class LazyBuffers extends BufferPool {
        LazyBuffers(int batchSize, Metrics metrics, Time time) {
            super(1L << 50, batchSize, metrics, time, "twin");
        }

        @Override
        protected ByteBuffer allocateByteBuffer(int size) {
            if (size < 1 << 24)
                return ByteBuffer.allocate(size);
            try {
                Path hole = Files.createTempFile("twin", ".hole");
                try (FileChannel channel = FileChannel.open(
                        hole, StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.DELETE_ON_CLOSE)) {
                    return channel.map(FileChannel.MapMode.READ_WRITE, 0, size);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private final Chance story;
    private final Chance draws;
    private final Clock clock = new Clock();
    private final Choice choice = new Choice();
    private final PrintStream trace;
    private final RecordAccumulator accumulator;
    private final Compression compression;
    private final int batchSize;
    private final boolean ignoresKeys;
    private final int maxIncomplete;
    private final int typicalValue;
    private final String[] nodeRacks = new String[MAX_NODES];
    private final boolean[] nodeTakes = new boolean[MAX_NODES];
    private final int nodeCount;
    private final List<Integer> leaders = new ArrayList<>();
    private final List<List<ProducerBatch>> inFlight = new ArrayList<>();
    private int incomplete = 0;
    private MetadataSnapshot snapshot;
    private Cluster cluster;
    private long hash = 0;
    private long records = 0;

    private PartitioningTwin(long seed, PrintStream trace) {
        this.trace = trace;
        story = new Chance(seed);
        draws = new Chance(~seed);
        int sizeIndex = story.below(BATCH_SIZES.length);
        // The largest that Kafka can live with: with one byte more, twice of it overflows and send never returns.
        batchSize = seed % 50 == 0 ? (1 << 30) - 1 : BATCH_SIZES[sizeIndex];
        String codec = CODECS[story.below(CODECS.length)];
        boolean isAdaptive = story.below(4) != 0;
        int timeout = TIMEOUTS[story.below(TIMEOUTS.length)];
        boolean isRackAware = story.below(3) == 0;
        String rack = RACKS[1 + story.below(RACKS.length - 1)];
        ignoresKeys = story.below(4) == 0;
        nodeCount = 1 + story.below(MAX_NODES);
        int partitions = 1 + story.below(story.below(8) == 0 ? 120 : 9);
        boolean hasRacks = story.below(4) != 0;
        typicalValue = Math.max(1, Math.min(batchSize, 1 << 16) * (1 + story.below(8)) / 8);
        maxIncomplete = Math.max(24, Math.min(400, (1 << 27) / Math.max(batchSize, 1)));
        for (int node = 0; node < MAX_NODES; node++) {
            nodeRacks[node] = hasRacks ? RACKS[story.below(RACKS.length)] : null;
            nodeTakes[node] = true;
        }
        for (int partition = 0; partition < partitions; partition++)
            addPartition();
        compression = Compression.of(codec).build();
        CompressionRatioEstimator.resetEstimation(TOPIC);
        Metrics metrics = new Metrics();
        accumulator = new RecordAccumulator(new LogContext(), batchSize, compression, 0, 0L, 0L, Integer.MAX_VALUE,
            new RecordAccumulator.PartitionerConfig(isAdaptive, timeout, isRackAware, isRackAware ? rack : ""),
            metrics, "twin", clock, null,
            new LazyBuffers(batchSize, metrics, clock)) {
            @Override
            BuiltInPartitioner createBuiltInPartitioner(LogContext log, String topic, int stickyBatchSize,
                                                        boolean rackAware, String itsRack) {
                return new BuiltInPartitioner(log, topic, stickyBatchSize, rackAware, itsRack) {
                    @Override
                    int randomPartition() {
                        return draws.next();
                    }
                };
            }
        };
        look();
    }

    private void addPartition() {
        leaders.add(story.below(10) == 0 ? -1 : story.below(nodeCount));
        inFlight.add(new ArrayList<>());
    }

    /** Publishes new metadata. */
    private void look() {
        List<Node> nodes = new ArrayList<>();
        for (int node = 0; node < nodeCount; node++)
            nodes.add(new Node(node, "host", 9092 + node, nodeRacks[node]));
        Node[] nobody = new Node[0];
        List<PartitionInfo> partitions = new ArrayList<>();
        for (int partition = 0; partition < leaders.size(); partition++) {
            int leader = leaders.get(partition);
            partitions.add(new PartitionInfo(TOPIC, partition, leader < 0 ? null : nodes.get(leader), nobody, nobody));
        }
        cluster = new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
        snapshot = new MetadataSnapshot("cluster", Map.of(), List.of(), Set.of(), Set.of(), Set.of(), null,
            Map.of(), cluster);
    }

    private String tell(int operations) throws InterruptedException {
        for (int operation = 0; operation < operations; operation++) {
            String what = act(story.below(1000));
            if (trace != null)
                trace.println(operation + " " + what + " draws=" + draws.draws);
        }
        return Long.toHexString(hash) + " " + records + " " + draws.draws;
    }

    private String act(int kind) throws InterruptedException {
        if (incomplete >= maxIncomplete)
            return drainAll();
        if (kind < 700)
            return append(RecordMetadata.UNKNOWN_PARTITION, null);
        if (kind < 760)
            return appendKeyed();
        if (kind < 820)
            return append(story.below(leaders.size()), null);
        if (kind < 900)
            return pass();
        if (kind < 930)
            return settle();
        if (kind < 955) {
            clock.now += story.below(30);
            return "time";
        }
        if (kind < 975) {
            int node = story.below(nodeCount);
            nodeTakes[node] = !nodeTakes[node];
            return "node " + node + " takes " + nodeTakes[node];
        }
        if (kind < 985) {
            int partition = story.below(leaders.size());
            leaders.set(partition, story.below(3) == 0 ? -1 : story.below(nodeCount));
            look();
            return "leader of " + partition + " " + leaders.get(partition);
        }
        if (kind < 990) {
            int node = story.below(nodeCount);
            nodeRacks[node] = RACKS[story.below(RACKS.length)];
            look();
            return "rack of " + node + " " + nodeRacks[node];
        }
        if (kind < 992) {
            if (leaders.size() < 150)
                addPartition();
            look();
            return "partitions " + leaders.size();
        }
        if (kind < 994) {
            // All leaders are lost at once, so that no partition can be chosen.
            Collections.fill(leaders, -1);
            look();
            return "no leaders";
        }
        if (kind < 998) {
            for (int partition = 0; partition < leaders.size(); partition++)
                leaders.set(partition, story.below(nodeCount));
            look();
            return "all leaders";
        }
        return drainAll();
    }

    private String appendKeyed() throws InterruptedException {
        byte[] key = new byte[story.below(9)];
        for (int index = 0; index < key.length; index++)
            key[index] = (byte) story.below(256);
        int partition = ignoresKeys
            ? RecordMetadata.UNKNOWN_PARTITION
            : BuiltInPartitioner.partitionForKey(key, leaders.size());
        return append(partition, key);
    }

    private String append(int partition, byte[] key) throws InterruptedException {
        byte[] value = value();
        Header[] headers = null;
        if (story.below(8) == 0) {
            headers = new Header[1 + story.below(3)];
            for (int index = 0; index < headers.length; index++) {
                String name = "n".repeat(1 + story.below(12)) + (story.below(4) == 0 ? "é" : "");
                int size = story.below(80);
                headers[index] = new RecordHeader(name, size < 10 ? null : Arrays.copyOf(ZEROS, size - 10));
            }
        }
        long timestamp = clock.now;
        if (story.below(16) == 0)
            timestamp += story.below(1 << (1 + story.below(29))) - (1 << 20);
        RecordAccumulator.RecordAppendResult result = accumulator.append(
            TOPIC, partition, timestamp, key, value, headers, choice, 0, clock.now, cluster);
        if (result.newBatchCreated)
            incomplete++;
        records++;
        mix(choice.partition);
        mix((int) draws.draws);
        return "append " + (value == null ? -1 : value.length) + ": " + choice.partition;
    }

    private byte[] value() {
        int kind = story.below(16);
        if (kind == 0)
            return null;
        if (kind < 9)
            return Arrays.copyOf(ZEROS, story.below(typicalValue));
        if (kind < 14)
            return Arrays.copyOf(ZEROS, story.below(40));
        if (kind < 15)
            // Sizes near a full batch, where the free bytes of a larger buffer matter.
            return Arrays.copyOf(ZEROS, Math.max(0, Math.min(batchSize, 1 << 16) - 90 + story.below(100)));
        return Arrays.copyOf(ZEROS, story.below(3 * Math.min(batchSize, 1 << 17)));
    }

    /** One run of the sender: ready partitions, ready brokers, drained batches. */
    private String pass() {
        Set<Node> ready = accumulator.ready(snapshot, clock.now).readyNodes;
        StringBuilder said = new StringBuilder("pass");
        for (Node node : cluster.nodes().stream().sorted(Comparator.comparingInt(Node::id)).toList()) {
            if (!ready.contains(node))
                continue;
            accumulator.updateNodeLatencyStats(node.id(), clock.now, nodeTakes[node.id()]);
            mix(node.id());
            said.append(" ").append(node.id()).append(nodeTakes[node.id()] ? "" : " (not ready)");
            if (nodeTakes[node.id()] && story.below(4) != 0)
                drain(Set.of(node));
        }
        return said.toString();
    }

    /** Drains the oldest batch of every partition that these nodes lead. */
    private void drain(Set<Node> nodes) {
        List<ProducerBatch> taken = new ArrayList<>();
        accumulator.drain(snapshot, nodes, Integer.MAX_VALUE, clock.now).values().forEach(taken::addAll);
        taken.sort(Comparator.comparingInt(batch -> batch.topicPartition.partition()));
        for (ProducerBatch batch : taken) {
            inFlight.get(batch.topicPartition.partition()).add(batch);
            mix(batch.topicPartition.partition());
            mix(batch.recordCount);
        }
        // No codec runs here: the scenario determines the compression ratio.
        if (compression.type().id != 0)
            CompressionRatioEstimator.setEstimation(TOPIC, compression.type(), (20 + story.below(100)) / 100f);
    }

    /** Acknowledges a partition's batches in flight, or puts them back for a retry. */
    private String settle() {
        int partition = story.below(leaders.size());
        boolean comeBack = story.below(3) == 0;
        List<ProducerBatch> batches = inFlight.get(partition);
        for (int index = batches.size() - 1; index >= 0; index--) {
            if (comeBack)
                accumulator.reenqueue(batches.get(index), clock.now);
            else
                complete(batches.get(index));
        }
        batches.clear();
        return "settle " + partition + (comeBack ? " again" : "");
    }

    private void complete(ProducerBatch batch) {
        accumulator.completeAndDeallocateBatch(batch);
        incomplete--;
    }

    /** Sends and acknowledges all batches; partitions without a leader get one. */
    private String drainAll() {
        for (int partition = 0; partition < leaders.size(); partition++)
            if (leaders.get(partition) < 0)
                leaders.set(partition, story.below(nodeCount));
        look();
        Set<Node> ready;
        while (!(ready = accumulator.ready(snapshot, clock.now).readyNodes).isEmpty()) {
            for (int node = 0; node < nodeCount; node++)
                accumulator.updateNodeLatencyStats(node, clock.now, true);
            drain(ready);
        }
        for (List<ProducerBatch> batches : inFlight) {
            batches.forEach(this::complete);
            batches.clear();
        }
        return "drain all";
    }

    private void mix(int fact) {
        hash = hash * 1_000_003 + fact;
    }

    public static void main(String[] arguments) throws InterruptedException {
        long first = Long.parseLong(arguments[0]);
        long count = Long.parseLong(arguments[1]);
        int operations = Integer.parseInt(arguments[2]);
        boolean isTraced = arguments.length > 3 && arguments[3].equals("trace");
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (long seed = first; seed < first + count; seed++) {
            PartitioningTwin twin = new PartitioningTwin(seed, isTraced ? out : null);
            out.println(seed + " " + twin.tell(operations));
            out.flush();
        }
    }
}

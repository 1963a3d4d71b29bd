import java.lang.reflect.Field;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.UniformStickyPartitioner;
import org.apache.kafka.clients.producer.internals.DefaultPartitioner;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Passes records to Java's producer while its brokers are stopped, and prints for each record its
 * partition and every sticky partition chosen for it.
 *
 * <p>Arguments: bootstrap servers, topic, partitioner, batch.size. The first line of standard input
 * means that the brokers are stopped; each further line is a record: a partition or "-", a key or
 * "-", the size of its value.
 */
public class StickyTwin {
    static StringBuilder drawn = new StringBuilder();
    static int chosen;

    /** The choices of both partitioners, and the partitions chosen at random so far. */
    public abstract static class Spy implements Partitioner {
        private final Partitioner partitioner;
        private Integer last;

        Spy(Partitioner partitioner) {
            this.partitioner = partitioner;
        }

        private void note(String topic) {
            try {
                Field cache = partitioner.getClass().getDeclaredField("stickyPartitionCache");
                cache.setAccessible(true);
                Object held = cache.get(partitioner);
                Field index = held.getClass().getDeclaredField("indexCache");
                index.setAccessible(true);
                Integer now = (Integer) ((Map<?, ?>) index.get(held)).get(topic);
                if (now != null && !now.equals(last)) {
                    drawn.append(' ').append(now);
                    last = now;
                }
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public int partition(
                String topic, Object key, byte[] keyBytes, Object value, byte[] valueBytes,
                Cluster cluster) {
            chosen = partitioner.partition(topic, key, keyBytes, value, valueBytes, cluster);
            note(topic);
            return chosen;
        }

        @Override
        @SuppressWarnings("deprecation")
        public void onNewBatch(String topic, Cluster cluster, int previous) {
            partitioner.onNewBatch(topic, cluster, previous);
            note(topic);
        }

        @Override
        public void close() {}

        @Override
        public void configure(Map<String, ?> configs) {}
    }

    public static class Default extends Spy {
        public Default() {
            super(new DefaultPartitioner());
        }
    }

    public static class Uniform extends Spy {
        public Uniform() {
            super(new UniformStickyPartitioner());
        }
    }

    public static void main(String[] arguments) throws Exception {
        var input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        Properties options = new Properties();
        options.put("bootstrap.servers", arguments[0]);
        options.put(
                "partitioner.class",
                arguments[2].equals("Default") ? Default.class : Uniform.class);
        options.put("batch.size", arguments[3]);
        options.put("linger.ms", "3600000");
        options.put("delivery.timeout.ms", "7200000");
        options.put("enable.idempotence", "false");
        options.put("key.serializer", ByteArraySerializer.class.getName());
        options.put("value.serializer", ByteArraySerializer.class.getName());
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options);
        producer.partitionsFor(arguments[1]);
        System.out.println("ready");
        input.readLine();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split(" ");
            Integer partition = fields[0].equals("-") ? null : Integer.valueOf(fields[0]);
            byte[] key = fields[1].equals("-") ? null : fields[1].getBytes();
            drawn.setLength(0);
            producer.send(
                    new ProducerRecord<>(
                            arguments[1], partition, 1000L, key,
                            new byte[Integer.parseInt(fields[2])]));
            System.out.println((partition == null ? chosen : partition) + drawn.toString());
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}

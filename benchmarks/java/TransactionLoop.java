import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * As `benchmarks.transaction_loop send`, with Java's producer: ends some transactions uncounted,
 * then the measured ones. Prints the JSON line of that module.
 */
class TransactionLoop {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        int records = Integer.parseInt(arguments[2]);
        byte[] value = new byte[Integer.parseInt(arguments[3])];
        int transactions = Integer.parseInt(arguments[4]);
        int warmUp = Integer.parseInt(arguments[5]);
        long[] commits = new long[transactions];
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", topic);
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            producer.initTransactions();
            long began = 0;
            for (int number = -warmUp; number < transactions; number++) {
                if (number == 0)
                    began = System.nanoTime();
                producer.beginTransaction();
                for (int each = 0; each < records; each++)
                    producer.send(new ProducerRecord<>(topic, value));
                long before = System.nanoTime();
                producer.commitTransaction();
                if (number >= 0)
                    commits[number] = System.nanoTime() - before;
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            StringJoiner times = new StringJoiner(", ", "[", "]");
            for (long each : commits)
                times.add(String.valueOf(each / 1e6));
            System.out.println("{\"seconds\": " + seconds + ", \"commit_ms\": " + times + "}");
        }
    }
}

import java.time.Duration;
import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * As `lab.benchmarks.transaction_loop send`, with Java's producer: ends some transactions uncounted,
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
        KafkaProducer<byte[], byte[]> producer = begin(properties);
        long began = 0;
        for (int number = -warmUp; number < transactions; number++) {
            if (number == 0)
                began = System.nanoTime();
            try {
                producer.beginTransaction();
                for (int each = 0; each < records; each++)
                    producer.send(new ProducerRecord<>(topic, value));
                long before = System.nanoTime();
                producer.commitTransaction();
                if (number >= 0)
                    commits[number] = System.nanoTime() - before;
            } catch (ProducerFencedException | InvalidTxnStateException race) {
                // Its sender looked for batches before `send`, and for requests after `commit`. So it
                // sent EndTxn before the records.
                producer.close(Duration.ZERO);
                producer = begin(properties);
                number--;
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        producer.close();
        StringJoiner times = new StringJoiner(", ", "[", "]");
        for (long each : commits)
            times.add(String.valueOf(each / 1e6));
        System.out.println("{\"seconds\": " + seconds + ", \"commit_ms\": " + times + "}");
    }

    static KafkaProducer<byte[], byte[]> begin(Properties properties) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
        producer.initTransactions();
        return producer;
    }
}

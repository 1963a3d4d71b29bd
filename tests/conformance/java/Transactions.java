import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends transactions, of which every third is aborted; then copies them record by record, exactly once; then fences a producer. Prints what a consumer of committed records reads, and the group's offset. */
public class Transactions {
    static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        String source = arguments[1], copy = arguments[2];
        try (KafkaProducer<String, String> producer = producer("source")) {
            producer.initTransactions();
            for (int number = 0; number < 9; number++) {
                producer.beginTransaction();
                for (int each = 0; each < 10; each++)
                    producer.send(new ProducerRecord<>(source, 0, null, number + "-" + each));
                if (number % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        copy(source, copy, 60);
        System.out.println("copied " + read(copy, 60));
        fence(source);
    }

    static void copy(String source, String copy, int count) {
        TopicPartition from = new TopicPartition(source, 0);
        try (KafkaConsumer<String, String> consumer = consumer("copiers");
             KafkaProducer<String, String> producer = producer("copy")) {
            producer.initTransactions();
            consumer.assign(List.of(from));
            consumer.seek(from, 0);
            int copied = 0, attempts = 0;
            while (copied < count) {
                producer.beginTransaction();
                int some = 0;
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    producer.send(new ProducerRecord<>(copy, 0, null, record.value()));
                    some++;
                }
                producer.sendOffsetsToTransaction(
                    Map.of(from, new OffsetAndMetadata(consumer.position(from))),
                    new ConsumerGroupMetadata("copiers"));
                if (attempts++ == 0) {
                    producer.abortTransaction();
                    OffsetAndMetadata before = consumer.committed(java.util.Set.of(from)).get(from);
                    consumer.seek(from, before == null ? 0 : before.offset());
                } else {
                    producer.commitTransaction();
                    copied += some;
                }
            }
            System.out.println("offset " + (consumer.committed(java.util.Set.of(from)).get(from).offset() == consumer.position(from)));
        }
    }

    static int read(String topic, int count) {
        try (KafkaConsumer<String, String> consumer = consumer("readers")) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            int read = 0;
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (record.value().startsWith("2-") || record.value().startsWith("5-"))
                        throw new IllegalStateException("aborted: " + record);
                    read++;
                }
            return read;
        }
    }

    static void fence(String topic) {
        try (KafkaProducer<String, String> old = producer("fenced");
             KafkaProducer<String, String> young = producer("fenced")) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, 0, null, "old"));
            old.flush();
            young.initTransactions();
            try {
                old.commitTransaction();
                System.out.println("fenced false");
            } catch (ProducerFencedException | InvalidProducerEpochException error) {
                System.out.println("fenced true");
            }
        }
    }

    static KafkaProducer<String, String> producer(String id) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("transactional.id", id);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("isolation.level", "read_committed");
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }
}

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a topic in fetches of 1 KiB; prints the partition of each record as it is read. */
class SmallFetches {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        int records = Integer.parseInt(arguments[3]);
        List<TopicPartition> partitions =
            IntStream.range(0, Integer.parseInt(arguments[2]))
                .mapToObj(each -> new TopicPartition(topic, each))
                .toList();
        Map<String, Object> options =
            Map.of("bootstrap.servers", arguments[0], "fetch.max.bytes", 1024);
        try (var consumer =
                new KafkaConsumer<>(
                    options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (int read = 0; read < records; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(10))) {
                    System.out.println(record.partition());
                    read++;
                }
            }
        }
    }
}

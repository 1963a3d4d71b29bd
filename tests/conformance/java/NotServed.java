import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Joins a share group; prints the error. */
public class NotServed {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("default.api.timeout.ms", 60000);
        properties.put("group.id", "g");
        KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
            properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of("t"));
        try {
            for (int second = 0; second < 60; second++) consumer.poll(Duration.ofSeconds(1));
            System.out.println("poll served");
        } catch (Exception error) {
            System.out.println("poll " + error);
        }
        consumer.close(Duration.ZERO);
    }
}

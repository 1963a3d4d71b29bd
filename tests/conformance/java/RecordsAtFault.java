import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends five records in one batch, two of them without a key; prints the error of each. */
public class RecordsAtFault {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> options = Map.of(
            "bootstrap.servers", arguments[0], "linger.ms", 60_000);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                options, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String key : new String[] {"a", null, "b", null, "c"}) {
                byte[] bytes = key == null ? null : key.getBytes();
                sent.add(producer.send(new ProducerRecord<>("t", 0, bytes, new byte[] {1})));
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                try {
                    System.out.println(each.get());
                } catch (ExecutionException error) {
                    System.out.println(error.getCause());
                }
            }
        }
    }
}

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Uses groups and transactions; prints a line for each call: its name and its error. */
public class NotServed {
    static String servers;

    public static void main(String[] arguments) {
        servers = arguments[0];
        Admin admin = Admin.create(properties());
        run("poll", () -> withConsumer(consumer -> {
            consumer.subscribe(List.of("t"));
            return consumer.poll(Duration.ofSeconds(60)).count();
        }));
        run("committed", () -> withConsumer(consumer ->
            consumer.committed(Set.of(new TopicPartition("t", 0)))));
        run("initTransactions", () -> {
            Properties properties = properties();
            properties.put("transactional.id", "x");
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                    properties, new ByteArraySerializer(), new ByteArraySerializer())) {
                producer.initTransactions();
                return "done";
            }
        });
        run("describeGroups", () -> admin.describeConsumerGroups(List.of("g")).all().get());
        run("listGroups", () -> admin.listConsumerGroups().all().get());
        run("groupOffsets", () ->
            admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get());
        run("describeTransactions", () -> admin.describeTransactions(List.of("x")).all().get());
        run("listTransactions", () -> admin.listTransactions().all().get());
        admin.close(Duration.ZERO);
    }

    static Properties properties() {
        Properties properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", servers, "default.api.timeout.ms", 60000));
        return properties;
    }

    interface Use {
        Object of(KafkaConsumer<byte[], byte[]> consumer);
    }

    static Object withConsumer(Use use) {
        Properties properties = properties();
        properties.put("group.id", "g");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            return use.of(consumer);
        }
    }

    static void run(String name, Callable<Object> way) {
        Object met;
        try {
            met = "served: " + way.call();
        } catch (ExecutionException error) {
            met = error.getCause();
        } catch (Exception error) {
            met = error;
        }
        System.out.println(name + " " + met);
    }
}

import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Deserializer;

/** Uses share groups, if the client knows them, and transactions; prints a line for each call: its name and its error. */
public class NotServed {
    static String servers;

    public static void main(String[] arguments) {
        servers = arguments[0];
        Admin admin = Admin.create(properties());
        try {
            Class<?> consumer = Class.forName("org.apache.kafka.clients.consumer.KafkaShareConsumer");
            run("poll", () -> pollShares(consumer));
        } catch (ClassNotFoundException old) {
            // This client has no share groups.
        }
        run("initTransactions", () -> {
            Properties properties = properties();
            properties.put("transactional.id", "x");
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                    properties, new ByteArraySerializer(), new ByteArraySerializer())) {
                producer.initTransactions();
                return "done";
            }
        });
        run("describeTransactions", () -> admin.describeTransactions(List.of("x")).all().get());
        run("listTransactions", () -> admin.listTransactions().all().get());
        admin.close(Duration.ZERO);
    }

    static Properties properties() {
        Properties properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", servers, "default.api.timeout.ms", 60000));
        return properties;
    }

    static Object pollShares(Class<?> kind) throws Exception {
        Properties properties = properties();
        properties.put("group.id", "g");
        Object consumer = kind
            .getConstructor(Properties.class, Deserializer.class, Deserializer.class)
            .newInstance(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            kind.getMethod("subscribe", Collection.class).invoke(consumer, List.of("t"));
            Object records = null;
            for (int second = 0; second < 60; second++)
                records = kind.getMethod("poll", Duration.class).invoke(consumer, Duration.ofSeconds(1));
            return records;
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
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

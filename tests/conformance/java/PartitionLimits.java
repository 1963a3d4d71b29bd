import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java's half of `JavaJudge` in partition_limit_judges.py: reads a command per line from standard
 * input and prints an answer per line, both as words separated by tabs. Replicas are `0,1|1,2`.
 *
 * An error that did not come from a broker ends the process.
 */
class PartitionLimits {
    private static final int PATIENCE_S = 30;

    private static Admin admin;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(String.join("\t", obey(line.split("\t", -1))));
        }
    }

    private static List<String> obey(String[] words) throws Exception {
        switch (words[0]) {
            case "connect":
                admin = Admin.create(Map.of("bootstrap.servers", words[1]));
                return List.of();
            case "close":
                admin.close(Duration.ZERO);
                return List.of();
            case "create-topics":
                return createTopics(words);
            case "create-partitions":
                return createPartitions(words);
            case "delete-topic":
                return tell(admin.deleteTopics(List.of(words[1])).all());
            case "reassign":
                return reassign(words);
            case "set-option":
                return setOption(admin, words);
            case "set-controller-option":
                try (Admin direct = Admin.create(Map.of("bootstrap.controllers", words[5]))) {
                    return setOption(direct, words);
                }
            case "describe-option":
                return describeOption(words);
            case "ask-for":
                return askFor(words[1], words[2]);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Arguments: validate only; for each topic name, partitions, factor, replicas, option. */
    private static List<String> createTopics(String[] words) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (int at = 2; at < words.length; at += 5) {
            NewTopic topic;
            if (words[at + 3].isEmpty()) {
                short factor = Short.parseShort(words[at + 2]);
                topic = new NewTopic(words[at], Integer.parseInt(words[at + 1]), factor);
            } else {
                Map<Integer, List<Integer>> assignment = new LinkedHashMap<>();
                for (List<Integer> replicas : readAssignment(words[at + 3])) {
                    assignment.put(assignment.size(), replicas);
                }
                topic = new NewTopic(words[at], assignment);
            }
            if (!words[at + 4].isEmpty()) {
                String[] option = words[at + 4].split("=", 2);
                topic.configs(Map.of(option[0], option[1]));
            }
            topics.add(topic);
        }
        var options = new CreateTopicsOptions().validateOnly(words[1].equals("true"));
        var results = admin.createTopics(topics, options).values();
        List<String> answer = new ArrayList<>();
        for (NewTopic topic : topics) {
            answer.addAll(tell(results.get(topic.name())));
        }
        return answer;
    }

    private static List<String> createPartitions(String[] words) throws Exception {
        int count = Integer.parseInt(words[2]);
        NewPartitions wanted =
            words[3].isEmpty()
                ? NewPartitions.increaseTo(count)
                : NewPartitions.increaseTo(count, readAssignment(words[3]));
        return tell(admin.createPartitions(Map.of(words[1], wanted)).all());
    }

    /** Arguments: topic; for each partition its number and replicas, or none to cancel its move. */
    private static List<String> reassign(String[] words) throws Exception {
        Map<TopicPartition, Optional<NewPartitionReassignment>> targets = new LinkedHashMap<>();
        for (int at = 2; at < words.length; at += 2) {
            Optional<NewPartitionReassignment> target =
                words[at + 1].isEmpty()
                    ? Optional.empty()
                    : Optional.of(new NewPartitionReassignment(readReplicas(words[at + 1])));
            targets.put(new TopicPartition(words[1], Integer.parseInt(words[at])), target);
        }
        var results = admin.alterPartitionReassignments(targets).values();
        List<String> answer = new ArrayList<>();
        for (TopicPartition partition : targets.keySet()) {
            answer.addAll(tell(results.get(partition)));
        }
        return answer;
    }

    /** Arguments: broker, SET or DELETE, option, value. */
    private static List<String> setOption(Admin admin, String[] words) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, words[1]);
        AlterConfigOp operation =
            new AlterConfigOp(
                new ConfigEntry(words[3], words[4]), AlterConfigOp.OpType.valueOf(words[2]));
        return tell(admin.incrementalAlterConfigs(Map.of(broker, List.of(operation))).all());
    }

    /** Answers the option's value, source and type, and whether it is read-only. */
    private static List<String> describeOption(String[] words) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, words[1]);
        ConfigEntry found =
            admin.describeConfigs(List.of(broker)).all().get(PATIENCE_S, TimeUnit.SECONDS)
                .get(broker).get(words[2]);
        String isReadOnly = Boolean.toString(found.isReadOnly());
        return List.of(found.value(), found.source().name(), found.type().name(), isReadOnly);
    }

    /** Has a topic auto-created by requesting its metadata, as every consumer does. */
    private static List<String> askFor(String servers, String topic) {
        Map<String, Object> options = Map.of("bootstrap.servers", servers);
        try (var consumer =
                new KafkaConsumer<>(
                    options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.partitionsFor(topic, Duration.ofSeconds(PATIENCE_S));
            return tell((short) 0, "");
        } catch (KafkaException error) {
            // If the consumer does not expect an error code, its exception is the cause.
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return tell(Errors.forException(cause).code(), cause.getMessage());
        }
    }

    private static List<String> tell(KafkaFuture<?> future) throws Exception {
        try {
            future.get(PATIENCE_S, TimeUnit.SECONDS);
            return tell((short) 0, "");
        } catch (ExecutionException error) {
            Errors code = Errors.forException(error.getCause());
            if (code == Errors.UNKNOWN_SERVER_ERROR) {
                throw error;
            }
            return tell(code.code(), error.getCause().getMessage());
        }
    }

    private static List<String> tell(short code, String message) {
        String words = message == null ? "" : message.replaceAll("[\t\n]", " ");
        return List.of(Short.toString(code), words);
    }

    private static List<List<Integer>> readAssignment(String text) {
        return Arrays.stream(text.split("\\|")).map(PartitionLimits::readReplicas).toList();
    }

    private static List<Integer> readReplicas(String text) {
        return Arrays.stream(text.split(",")).map(Integer::valueOf).toList();
    }
}

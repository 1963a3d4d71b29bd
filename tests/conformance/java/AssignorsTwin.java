import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Assigns the groups of test_assignors_differential.py with Apache Kafka's own assignors: reads a
 * command per line from standard input and prints an answer per line. Fields are separated by tabs;
 * lists by ";", their elements' fields by "^", "-" is nothing.
 *
 * <p>"assign", an assignor, topics (name, racks of the replicas of each partition as "a,b|b,c"),
 * members (id, instance id, rack, topics, user data in hex, owned partitions, generation): prints
 * for each member its id and its partitions; nothing if the assignor failed, as the sticky ones
 * may with racks ("No more unfilled consumers to be assigned").
 *
 * <p>"data", an assignor, owned partitions, generation: prints the user data in hex.
 */
class AssignorsTwin {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            AbstractPartitionAssignor assignor = assignor(fields[1]);
            out.println(fields[0].equals("assign")
                ? assign(assignor, list(fields[2], ";"), list(fields[3], ";"))
                : data(assignor, partitions(fields[2]), Integer.parseInt(fields[3])));
        }
        out.flush();
    }

    private static AbstractPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    private static String assign(
            AbstractPartitionAssignor assignor, List<String> topics, List<String> members) {
        Map<String, Node> brokers = new HashMap<>();
        Map<String, List<PartitionInfo>> partitions = new HashMap<>();
        for (String topic : topics) {
            String[] fields = topic.split("\\^", -1);
            List<PartitionInfo> infos = new ArrayList<>();
            for (String racks : fields[1].split("\\|")) {
                Node[] replicas = list(racks, ",").stream()
                    .map(rack -> brokers.computeIfAbsent(
                        rack, r -> new Node(brokers.size(), "host", 9092, text(r))))
                    .toArray(Node[]::new);
                infos.add(new PartitionInfo(fields[0], infos.size(), null, replicas, replicas));
            }
            partitions.put(fields[0], infos);
        }
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (String member : members) {
            String[] fields = member.split("\\^", -1);
            Subscription subscription = new Subscription(
                list(fields[3], ","),
                fields[4].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(fields[4])),
                partitions(fields[5]),
                Integer.parseInt(fields[6]),
                Optional.ofNullable(text(fields[2])));
            subscription.setGroupInstanceId(Optional.ofNullable(text(fields[1])));
            subscriptions.put(fields[0], subscription);
        }
        Map<String, List<TopicPartition>> assigned;
        try {
            assigned = assignor.assignPartitions(partitions, subscriptions);
        } catch (IllegalStateException error) {
            return "-";
        }
        List<String> words = new ArrayList<>();
        new TreeMap<>(assigned).forEach((member, given) -> words.add(
            member + "^" + String.join(
                ",", given.stream().map(TopicPartition::toString).toList())));
        return String.join(";", words);
    }

    @SuppressWarnings("removal")
    private static String data(
            ConsumerPartitionAssignor assignor, List<TopicPartition> owned, int generation) {
        assignor.onAssignment(
            new Assignment(owned),
            new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(new HashSet<>());
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static List<TopicPartition> partitions(String text) {
        return list(text, ",").stream()
            .map(word -> new TopicPartition(
                word.substring(0, word.lastIndexOf('-')),
                Integer.parseInt(word.substring(word.lastIndexOf('-') + 1))))
            .toList();
    }

    private static List<String> list(String text, String separator) {
        return text.equals("-") ? List.of() : List.of(text.split(separator));
    }

    private static String text(String text) {
        return text.equals("-") ? null : text;
    }
}

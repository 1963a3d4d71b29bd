import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.tools.reassign.ReassignPartitionsCommand;

/**
 * Plans by kafka-reassign-partitions --generate: reads a topic and a broker list per line, prints
 * a line with the replicas of each partition, as "0:1,2 1:2,0".
 */
class KafkaPlans {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        PrintStream out = System.out;
        System.setOut(new PrintStream(new ByteArrayOutputStream()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(properties)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ");
                String topics = "{\"version\":1,\"topics\":[{\"topic\":\"" + words[0] + "\"}]}";
                Map<TopicPartition, List<Integer>> plan =
                        ReassignPartitionsCommand.generateAssignment(admin, topics, words[1], true)
                                .getKey();
                out.println(plan.entrySet().stream().map(KafkaPlans::write)
                        .collect(Collectors.joining(" ")));
            }
        }
    }

    private static String write(Map.Entry<TopicPartition, List<Integer>> each) {
        String replicas = each.getValue().stream().map(String::valueOf)
                .collect(Collectors.joining(","));
        return each.getKey().partition() + ":" + replicas;
    }
}

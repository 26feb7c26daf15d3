// Apache Kafka's own client behind lines of text: fields with tabs between, bytes in base64, "-" for null.
// A command has the client's properties first. It is answered with lines that begin with "+", and with "ok" or "failed", a name and a reason.

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaClient {
    private static final BufferedReader LINES =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private final Properties settings = new Properties();

    private JavaClient(byte[] properties) throws IOException {
        settings.load(new StringReader(new String(properties, StandardCharsets.UTF_8)));
    }

    public static void main(String[] given) throws IOException {
        for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
            String[] fields = line.split("\t", -1);
            try {
                new JavaClient(bytes(fields[1])).run(fields[0], List.of(fields).subList(2, fields.length));
                OUT.println("ok");
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                Errors known = Errors.forException(cause);
                String own = cause.getClass().getSimpleName();
                String name = known == Errors.UNKNOWN_SERVER_ERROR ? own : known.name();
                OUT.println("failed\t" + name + "\t" + text(String.valueOf(cause).getBytes(StandardCharsets.UTF_8)));
            }
            OUT.flush();
        }
    }

    private void run(String command, List<String> given) throws Exception {
        switch (command) {
            case "produce" -> produce(given);
            case "consume" -> consume(given);
            case "commit", "committed", "bounds", "times" -> offsets(command, given);
            default -> administer(command, given);
        }
    }

    private void produce(List<String> given) throws Exception {
        List<String> records = new ArrayList<>();
        for (int left = Integer.parseInt(given.get(4)); left > 0; left--) {
            records.add(LINES.readLine());
        }
        settings.put("acks", given.get(1));
        settings.put("enable.idempotence", String.valueOf(given.get(1).equals("all")));
        settings.put("compression.type", given.get(2));
        settings.put("max.request.size", "100000000");
        settings.put("buffer.memory", "200000000");
        settings.put("max.block.ms", given.get(3));
        settings.put("delivery.timeout.ms", "60000");
        settings.put("request.timeout.ms", "30000");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line : records) {
                String[] fields = line.split("\t", -1);
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                        given.get(0), Integer.valueOf(fields[0]), Long.valueOf(fields[1]),
                        bytes(fields[2]), bytes(fields[3]));
                for (int at = 4; at < fields.length; at += 2) {
                    record.headers().add(new String(bytes(fields[at]), StandardCharsets.UTF_8), bytes(fields[at + 1]));
                }
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> each : sent) {
                say(each.get().offset());
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group) {
        if (!group.equals("-")) {
            settings.put("group.id", group);
        }
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void consume(List<String> given) {
        String topic = given.get(0);
        int count = Integer.parseInt(given.get(1));
        boolean grouped = !given.get(2).equals("-");
        settings.put("auto.offset.reset", given.get(4));
        // What is fetched is committed: no more than is asked for.
        settings.put("max.poll.records", String.valueOf(count));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given.get(2))) {
            if (!given.get(3).equals("-")) {
                TopicPartition at = new TopicPartition(topic, 0);
                consumer.assign(List.of(at));
                consumer.seek(at, Long.parseLong(given.get(3)));
            } else if (grouped) {
                consumer.subscribe(List.of(topic));
            } else {
                List<TopicPartition> parts = new ArrayList<>();
                for (PartitionInfo info : consumer.partitionsFor(topic)) {
                    parts.add(new TopicPartition(topic, info.partition()));
                }
                consumer.assign(parts);
                consumer.seekToBeginning(parts);
            }
            int found = 0;
            long deadline = System.currentTimeMillis() + 60_000;
            while (found < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    show(record);
                    found++;
                }
            }
            if (grouped) {
                consumer.commitSync();
            }
        }
    }

    private static void show(ConsumerRecord<byte[], byte[]> record) {
        List<Object> line = new ArrayList<>(List.of(
                record.partition(), record.offset(), record.timestamp(), text(record.key()), text(record.value())));
        for (Header header : record.headers()) {
            line.add(text(header.key().getBytes(StandardCharsets.UTF_8)));
            line.add(text(header.value()));
        }
        say(line.toArray());
    }

    private void offsets(String command, List<String> given) {
        TopicPartition at = new TopicPartition(given.get(0), 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given.get(1))) {
            switch (command) {
                case "commit" -> {
                    String metadata = new String(bytes(given.get(3)), StandardCharsets.UTF_8);
                    consumer.commitSync(Map.of(at, new OffsetAndMetadata(Long.parseLong(given.get(2)), metadata)));
                }
                case "committed" -> {
                    OffsetAndMetadata held = consumer.committed(Set.of(at)).get(at);
                    if (held != null) {
                        say(held.offset(), text(held.metadata().getBytes(StandardCharsets.UTF_8)));
                    }
                }
                case "bounds" -> say(
                        consumer.beginningOffsets(List.of(at)).get(at), consumer.endOffsets(List.of(at)).get(at));
                default -> {
                    for (String time : given.subList(2, given.size())) {
                        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(at, Long.valueOf(time))).get(at);
                        say(found == null ? "-" : found.offset());
                    }
                }
            }
        }
    }

    private void administer(String command, List<String> given) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            String name = given.isEmpty() ? "" : given.get(0);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
            switch (command) {
                case "create" -> {
                    Map<String, String> configs = new HashMap<>();
                    for (int at = 2; at < given.size(); at += 2) {
                        configs.put(given.get(at), given.get(at + 1));
                    }
                    NewTopic topic = new NewTopic(name, Integer.parseInt(given.get(1)), (short) 1);
                    admin.createTopics(List.of(topic.configs(configs))).all().get();
                }
                case "partitions" -> say(
                        admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size());
                case "grow" -> admin.createPartitions(
                        Map.of(name, NewPartitions.increaseTo(Integer.parseInt(given.get(1))))).all().get();
                case "cut" -> {
                    TopicPartition at = new TopicPartition(name, 0);
                    RecordsToDelete before = RecordsToDelete.beforeOffset(Long.parseLong(given.get(1)));
                    say(admin.deleteRecords(Map.of(at, before)).lowWatermarks().get(at).get().lowWatermark());
                }
                case "delete" -> admin.deleteTopics(List.of(name)).all().get();
                case "settings" -> {
                    for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                        say(entry.name(), entry.value());
                    }
                }
                case "alter" -> {
                    ConfigEntry entry = new ConfigEntry(given.get(1), given.get(2));
                    AlterConfigOp change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
                    admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
                }
                case "groups" -> {
                    for (GroupListing group : admin.listGroups().all().get()) {
                        say(group.groupId());
                    }
                }
                case "group" -> {
                    var found = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
                    say(found.groupState());
                    for (MemberDescription member : found.members()) {
                        say(member.clientId());
                    }
                }
                case "delete-group" -> admin.deleteConsumerGroups(List.of(name)).all().get();
                default -> throw new IllegalArgumentException(command);
            }
        }
    }

    private static void say(Object... fields) {
        StringBuilder line = new StringBuilder("+");
        for (Object field : fields) {
            line.append('\t').append(field);
        }
        OUT.println(line);
    }

    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }
}

// Apache Kafka's own client behind lines of text: fields with tabs between, bytes in base64, "-" for null.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaClient {
    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }

    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[1]);
        if (given[0].equals("produce")) {
            settings.put("acks", given[3]);
            settings.put("enable.idempotence", String.valueOf(given[3].equals("all")));
            settings.put("compression.type", given[4]);
            settings.put("max.request.size", "100000000");
            settings.put("buffer.memory", "200000000");
            settings.put("delivery.timeout.ms", "60000");
            settings.put("request.timeout.ms", "30000");
            produce(settings, given[2]);
        } else {
            boolean grouped = !given[4].equals("-");
            if (grouped) {
                settings.put("group.id", given[4]);
            }
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            int count = Integer.parseInt(given[3]);
            // What is fetched is committed: no more than is asked for.
            settings.put("max.poll.records", String.valueOf(count));
            consume(settings, given[2], count, grouped);
        }
    }

    private static void produce(Properties settings, String topic) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] fields = line.split("\t");
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                        topic, Integer.valueOf(fields[0]), Long.valueOf(fields[1]), bytes(fields[2]), bytes(fields[3]));
                for (int at = 4; at < fields.length; at += 2) {
                    record.headers().add(new String(bytes(fields[at]), StandardCharsets.UTF_8), bytes(fields[at + 1]));
                }
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> each : sent) {
                System.out.println(each.get().offset());
            }
        }
    }

    private static void consume(Properties settings, String topic, int count, boolean grouped) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (grouped) {
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
                    StringBuilder line = new StringBuilder();
                    line.append(record.partition()).append('\t').append(record.offset()).append('\t');
                    line.append(record.timestamp()).append('\t').append(text(record.key())).append('\t');
                    line.append(text(record.value()));
                    for (Header header : record.headers()) {
                        line.append('\t').append(text(header.key().getBytes(StandardCharsets.UTF_8)));
                        line.append('\t').append(text(header.value()));
                    }
                    System.out.println(line);
                    found++;
                }
            }
            if (grouped) {
                consumer.commitSync();
            }
        }
    }
}

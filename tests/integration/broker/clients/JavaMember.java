// A member of a group as a process of its own, with Apache Kafka's client: what member.py is for the others.

import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class JavaMember {
    public static void main(String[] given) {
        Properties settings = new Properties();
        for (int at = 1; at < given.length; at += 2) {
            settings.put(given[at], given[at + 1]);
        }
        AtomicBoolean leaving = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                System.in.read();
            } catch (IOException gone) {
                // It has ended, which is what it is read for.
            }
            leaving.set(true);
        });
        watch.setDaemon(true);
        watch.start();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(given[0]), new Share());
            while (!leaving.get()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    read(consumer, record);
                }
            }
        }
    }

    private static final class Share implements ConsumerRebalanceListener {
        private final Set<String> parts = new TreeSet<>();

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            revoked.forEach(part -> parts.remove(String.valueOf(part.partition())));
            System.out.println("share\t" + String.join(",", parts));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            assigned.forEach(part -> parts.add(String.valueOf(part.partition())));
            System.out.println("share\t" + String.join(",", parts));
        }
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer, ConsumerRecord<byte[], byte[]> record) {
        TopicPartition part = new TopicPartition(record.topic(), record.partition());
        try {
            consumer.commitSync(Map.of(part, new OffsetAndMetadata(record.offset() + 1)));
        } catch (CommitFailedException | RebalanceInProgressException moved) {
            return;
        }
        System.out.println("read\t" + record.partition() + "\t" + record.offset());
    }
}

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.Stores;

/**
 * The same sums in Kafka Streams, exactly once: a processor that counts every (stream key, item) in a store with a
 * changelog. The faster of its two ways: its DSL would first send every item through a topic of its own.
 *
 * <p>BOOTSTRAP TOPIC EVENTS THREADS COMMIT_MS STATE_DIR APPLICATION; prints what it took on one line, and the sum of all counts.
 */
public class Count {
  private static final JsonFactory JSON = new JsonFactory();
  private static final CountDownLatch DONE = new CountDownLatch(1);
  private static final AtomicLong SEEN = new AtomicLong();
  private static long total;
  private static volatile long begun, half, ended;

  /** The "key|item" strings of an event. */
  private static List<String> pairs(byte[] event) {
    String key = null;
    List<String> items = new ArrayList<>(2);
    try (JsonParser parser = JSON.createParser(event)) {
      parser.nextToken();
      for (String field; (field = parser.nextFieldName()) != null; ) {
        parser.nextToken();
        if (field.equals("key")) {
          key = parser.getText();
        } else if (field.equals("items")) {
          while (parser.nextToken() != JsonToken.END_ARRAY) {
            items.add(parser.getText());
          }
        } else {
          parser.skipChildren();
        }
      }
    } catch (IOException e) {
      throw new RuntimeException(e);
    }
    for (int i = 0; i < items.size(); i++) {
      items.set(i, key + "|" + items.get(i));
    }
    return items;
  }

  private static class Counter implements Processor<byte[], byte[], Void, Void> {
    private KeyValueStore<String, Long> store;

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      store = context.getStateStore("counts");
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      if (begun == 0) {
        begun = System.nanoTime();
      }
      for (String pair : pairs(record.value())) {
        Long before = store.get(pair);
        store.put(pair, before == null ? 1L : before + 1);
      }
      long seen = SEEN.incrementAndGet();
      if (seen == total / 2) {
        half = System.nanoTime();
      } else if (seen == total) {
        ended = System.nanoTime();
        DONE.countDown();
      }
    }
  }

  public static void main(String[] given) throws Exception {
    total = Long.parseLong(given[2]);
    Properties settings = new Properties();
    settings.put("application.id", given[6]);
    settings.put("bootstrap.servers", given[0]);
    settings.put("processing.guarantee", "exactly_once_v2");
    settings.put("commit.interval.ms", given[4]);
    settings.put("num.stream.threads", given[3]);
    settings.put("statestore.cache.max.bytes", 64L << 20);
    settings.put("replication.factor", 1);
    settings.put("state.dir", given[5]);
    settings.put("auto.offset.reset", "earliest");
    var counts =
        Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("counts"), Serdes.String(), Serdes.Long())
            .withLoggingEnabled(Map.of())
            .withCachingEnabled();
    Topology topology =
        new Topology()
            .addSource("events", new ByteArrayDeserializer(), new ByteArrayDeserializer(), given[1])
            .addProcessor("count", Counter::new, "events")
            .addStateStore(counts, "count");
    KafkaStreams streams = new KafkaStreams(topology, settings);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return null;
        });
    streams.start();
    DONE.await();
    long sum = 0;
    var store = streams.store(StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore()));
    try (KeyValueIterator<String, Long> all = store.all()) {
      while (all.hasNext()) {
        sum += all.next().value;
      }
    }
    long closing = System.nanoTime();
    streams.close(); // flushes and commits for the last time
    System.out.printf(
        "whole=%.3f half=%.3f close=%.3f sum=%d%n",
        (ended - begun) / 1e9, (ended - half) / 1e9, (System.nanoTime() - closing) / 1e9, sum);
    System.exit(0);
  }
}

// A client of the tests: makes topics and rights, and reads records back.
//
//	java -cp 'JARS/*' Probe.java BROKERS [PROPERTIES]
//
// Reads commands from standard input, one per line, words separated by tabs, and
// answers each with lines and a last line "ok" or "error TEXT".
//
//	create TOPIC PARTITIONS [NAME=VALUE...]
//	delete TOPIC
//	config TOPIC NAME=VALUE...
//	describe TOPIC			NAME=VALUE lines
//	allow USER TOPIC|TRANSACTIONAL_ID NAME LITERAL|PREFIXED OPERATION...
//	read ISOLATION TOPIC...	a line of JSON for each record, up to the present end
//	records ISOLATION TOPIC...	the same without what Connect's converters make of it
//	count ISOLATION TOPIC...	how many records these are
//	revoke USER TOPIC|TRANSACTIONAL_ID NAME LITERAL|PREFIXED	all of the user's rights to it
//	open TRANSACTIONAL_ID TOPIC	begin a transaction with a record, and leave it open
//	end TRANSACTIONAL_ID	abort it
//	produce TOPIC KEY		a record without a transaction
//	transactions			each transactional id that the brokers know, a tab, and its state
//	leader TOPIC			the node that leads partition 0
//	elect					make the preferred nodes leaders again
//	partition KEY N			where Java's producer puts the key
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;

public class Probe
{
	static final Properties common = new Properties();
	static Admin admin;
	static final Map<String, KafkaProducer<byte[], byte[]>> open = new HashMap<>();

	public static void main(String[] args) throws Exception
	{
		if (args.length > 1)
			common.load(new FileInputStream(args[1]));
		common.put("bootstrap.servers", args[0]);
		common.put("default.api.timeout.ms", "60000");
		admin = Admin.create(common);
		BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
		for (String line; (line = in.readLine()) != null;)
		{
			try
			{
				run(line.split("\t"));
				System.out.println("ok");
			}
			catch (Exception e)
			{
				Throwable t = e.getCause() != null ? e.getCause() : e;
				System.out.println("error " + (t + "").replace("\n", " "));
			}
			System.out.flush();
		}
		System.exit(0);
	}

	static void run(String[] w) throws Exception
	{
		switch (w[0])
		{
			case "create" -> create(w);
			case "delete" -> delete(w[1]);
			case "config" -> config(w);
			case "describe" -> describe(w[1]);
			case "allow" -> allow(w);
			case "read" -> {
				awaitMarkers();
				read(w, r -> System.out.println(plain(r) + converted(r) + "}"));
			}
			case "records" -> read(w, r -> System.out.println(plain(r) + "}"));
			case "count" -> count(w);
			case "revoke" -> revoke(w);
			case "open" -> open(w[1], w[2]);
			case "end" -> end(w[1]);
			case "produce" -> produce(w[1], w[2]);
			case "transactions" -> admin.listTransactions().all().get()
				.forEach(t -> System.out.println(t.transactionalId() + "\t" + t.state()));
			case "leader" -> System.out.println(admin.describeTopics(List.of(w[1])).allTopicNames().get().get(w[1])
				.partitions().get(0).leader().id());
			case "elect" -> admin.electLeaders(ElectionType.PREFERRED, null).partitions().get();
			case "partition" -> System.out.println(
				BuiltInPartitioner.partitionForKey(w[1].getBytes(StandardCharsets.UTF_8), Integer.parseInt(w[2])));
			default -> throw new IllegalArgumentException(w[0]);
		}
	}

	static void delete(String topic) throws Exception
	{
		admin.deleteTopics(List.of(topic)).all().get();
		await(topic, false);
	}

	static void create(String[] w) throws Exception
	{
		NewTopic topic = new NewTopic(w[1], Optional.of(Integer.parseInt(w[2])), Optional.empty());
		Map<String, String> configs = new HashMap<>();
		for (int i = 3; i < w.length; i++)
			configs.put(w[i].split("=", 2)[0], w[i].split("=", 2)[1]);
		admin.createTopics(List.of(topic.configs(configs))).all().get();
		await(w[1], true);
	}

	// The broker knows of a change some time after the controller.
	static void await(String topic, boolean there) throws Exception
	{
		while (admin.listTopics().names().get().contains(topic) != there)
			Thread.sleep(10);
	}

	// A producer is told of its commit before the partitions are: until they have their markers, readers of committed
	// records do not see the transaction.
	static void awaitMarkers() throws Exception
	{
		ListTransactionsOptions ending = new ListTransactionsOptions()
			.filterStates(List.of(TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT));
		while (!admin.listTransactions(ending).all().get().isEmpty())
			Thread.sleep(10);
	}

	static void config(String[] w) throws Exception
	{
		Collection<AlterConfigOp> ops = new ArrayList<>();
		for (int i = 2; i < w.length; i++)
			ops.add(new AlterConfigOp(new ConfigEntry(w[i].split("=", 2)[0], w[i].split("=", 2)[1]),
				AlterConfigOp.OpType.SET));
		admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, w[1]), ops)).all().get();
	}

	static void describe(String topic) throws Exception
	{
		ConfigResource r = new ConfigResource(ConfigResource.Type.TOPIC, topic);
		System.out.println("partitions="
			+ admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
		for (ConfigEntry e : admin.describeConfigs(List.of(r)).all().get().get(r).entries())
			System.out.println(e.name() + "=" + e.value());
	}

	static void allow(String[] w) throws Exception
	{
		Collection<AclBinding> acls = new ArrayList<>();
		for (int i = 5; i < w.length; i++)
			acls.add(new AclBinding(
				new ResourcePattern(ResourceType.valueOf(w[2]), w[3], PatternType.valueOf(w[4])),
				new AccessControlEntry("User:" + w[1], "*", AclOperation.valueOf(w[i]), AclPermissionType.ALLOW)));
		admin.createAcls(acls).all().get();
	}

	static void revoke(String[] w) throws Exception
	{
		admin.deleteAcls(List.of(new AclBindingFilter(
			new ResourcePatternFilter(ResourceType.valueOf(w[2]), w[3], PatternType.valueOf(w[4])),
			new AccessControlEntryFilter("User:" + w[1], null, AclOperation.ANY, AclPermissionType.ANY)))).all().get();
	}

	static KafkaProducer<byte[], byte[]> producer(String id)
	{
		Properties p = new Properties();
		p.putAll(common);
		if (id != null)
			p.put("transactional.id", id);
		p.put("key.serializer", ByteArraySerializer.class.getName());
		p.put("value.serializer", ByteArraySerializer.class.getName());
		return new KafkaProducer<>(p);
	}

	static ProducerRecord<byte[], byte[]> record(String topic, String key)
	{
		return new ProducerRecord<>(topic, key.getBytes(StandardCharsets.UTF_8), new byte[0]);
	}

	static void open(String id, String topic) throws Exception
	{
		KafkaProducer<byte[], byte[]> producer = producer(id);
		open.put(id, producer);
		producer.initTransactions();
		producer.beginTransaction();
		producer.send(record(topic, id)).get();
	}

	static void end(String id)
	{
		try (KafkaProducer<byte[], byte[]> producer = open.remove(id))
		{
			producer.abortTransaction();
		}
	}

	static void produce(String topic, String key) throws Exception
	{
		try (KafkaProducer<byte[], byte[]> producer = producer(null))
		{
			producer.send(record(topic, key)).get();
		}
	}

	static String base64(byte[] b)
	{
		return b == null ? "null" : "\"" + Base64.getEncoder().encodeToString(b) + "\"";
	}

	static void count(String[] w) throws Exception
	{
		long[] n = {0};
		read(w, r -> n[0]++);
		System.out.println(n[0]);
	}

	static void read(String[] w, Consumer<ConsumerRecord<byte[], byte[]>> take) throws Exception
	{
		Properties p = new Properties();
		p.putAll(common);
		p.put("isolation.level", w[1]);
		p.put("enable.auto.commit", "false");
		p.put("key.deserializer", ByteArrayDeserializer.class.getName());
		p.put("value.deserializer", ByteArrayDeserializer.class.getName());
		try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p))
		{
			List<TopicPartition> parts = new ArrayList<>();
			for (int i = 2; i < w.length; i++)
				for (PartitionInfo info : consumer.partitionsFor(w[i]))
					parts.add(new TopicPartition(info.topic(), info.partition()));
			consumer.assign(parts);
			consumer.seekToBeginning(parts);
			Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
			while (parts.stream().anyMatch(t -> consumer.position(t) < ends.get(t)))
				for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200)))
					take.accept(r);
		}
	}

	static StringBuilder plain(ConsumerRecord<byte[], byte[]> r)
	{
		StringBuilder out = new StringBuilder("{\"topic\":\"" + r.topic() + "\",\"partition\":" + r.partition()
			+ ",\"offset\":" + r.offset() + ",\"timestamp\":" + r.timestamp() + ",\"key\":" + base64(r.key())
			+ ",\"value\":" + base64(r.value()) + ",\"headers\":[");
		String comma = "";
		for (Header h : r.headers())
		{
			out.append(comma).append("[\"").append(Base64.getEncoder().encodeToString(h.key().getBytes(StandardCharsets.UTF_8)))
				.append("\",").append(base64(h.value())).append("]");
			comma = ",";
		}
		return out.append("]");
	}

	// What the converters of Connect make of a record, as "string" and "json".
	static String converted(ConsumerRecord<byte[], byte[]> r)
	{
		return ",\"string\":[" + string(r.topic(), r.key(), true) + "," + string(r.topic(), r.value(), false) + "]"
			+ ",\"json\":[" + json(r.topic(), r.key(), true) + "," + json(r.topic(), r.value(), false) + "]";
	}

	static String string(String topic, byte[] data, boolean key)
	{
		StringConverter c = new StringConverter();
		c.configure(Map.of(), key);
		Object v = c.toConnectData(topic, data).value();
		return v == null ? "null" : base64(v.toString().getBytes(StandardCharsets.UTF_8));
	}

	static String json(String topic, byte[] data, boolean key)
	{
		try (JsonConverter c = new JsonConverter())
		{
			c.configure(Map.of("schemas.enable", "false"), key);
			SchemaAndValue v = c.toConnectData(topic, data);
			return v.value() == null ? "null" : base64((v.value() + "").getBytes(StandardCharsets.UTF_8));
		}
		catch (Exception e)
		{
			return "\"\"";
		}
	}
}

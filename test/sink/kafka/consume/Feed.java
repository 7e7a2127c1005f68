// Writes the messages for the programs of this folder, in transactions.
//
//	java -cp 'JARS/*' Feed.java BROKERS TOPIC
//
// Reads commands from standard input, one per line, words separated by tabs, and
// answers each end of a transaction with the offsets behind it and a line "ok".
//
//	send PARTITION KEY VALUE		KEY and VALUE in base64; "-" is none
//	commit|abort			ends a transaction; a commit answers PARTITION OFFSET for each send, in order
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Feed
{
	static byte[] bytes(String word)
	{
		return word.equals("-") ? null : Base64.getDecoder().decode(word);
	}

	public static void main(String[] args) throws Exception
	{
		KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Map.of("bootstrap.servers", args[0],
			"transactional.id", "feed", "key.serializer", ByteArraySerializer.class,
			"value.serializer", ByteArraySerializer.class));
		List<Future<RecordMetadata>> sent = new ArrayList<>();
		BufferedReader in = new BufferedReader(new InputStreamReader(System.in));

		producer.initTransactions();
		for (String line; (line = in.readLine()) != null;)
		{
			String[] w = line.split("\t");
			if (w[0].equals("send"))
			{
				if (sent.isEmpty())
					producer.beginTransaction();
				sent.add(producer.send(new ProducerRecord<>(args[1], Integer.parseInt(w[1]), bytes(w[2]), bytes(w[3]))));
				continue;
			}
			producer.flush();
			for (Future<RecordMetadata> f : sent)
				if (w[0].equals("commit"))
					System.out.println(f.get().partition() + "\t" + f.get().offset());
			if (w[0].equals("commit"))
				producer.commitTransaction();
			else
				producer.abortTransaction();
			sent.clear();
			System.out.println("ok");
			System.out.flush();
		}
		producer.close();
	}
}

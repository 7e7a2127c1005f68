-- title: UPDATE of the row of a producer's partition, with a check of the producer's epoch
-- about: floor of a sequence: both rows are there, in tables of one's own; the producer's row is read without a lock, so an old epoch may commit after a new one; no answer but the count of rows
-- rows: 0
-- before: TRUNCATE bench.floor_producer, bench.floor_sequence; INSERT INTO bench.floor_producer VALUES (1, 1); INSERT INTO bench.floor_sequence SELECT 1, 'arm', n, 0 FROM generate_series(0, 1023) AS n
UPDATE bench.floor_sequence s SET last_sequence = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM bench.floor_producer p WHERE p.producer_id = 1 AND p.epoch = 1 AND s.producer_id = 1 AND s.topic = 'arm' AND s.partition = :client_id AND s.last_sequence < 9000000000000000000;

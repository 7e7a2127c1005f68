-- title: UPDATE of the row of a partition, with a check
-- about: floor of an offset: the row of (consumer, topic, partition) is there, in a table of one's own; no generation, no answer but the count of rows. The check compares with a constant, since the number is made once in offset_one, too
-- rows: 0
-- before: TRUNCATE bench.floor_offset; INSERT INTO bench.floor_offset SELECT 'bench', 'arm', n, 0 FROM generate_series(0, 1023) AS n
UPDATE bench.floor_offset SET next_offset = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE consumer = 'bench' AND topic = 'arm' AND partition = :client_id AND next_offset < 9000000000000000000;

-- title: pgmq.send_batch of 100
-- events: 100
-- needs: pgmq
-- tables: pgmq.q\_bench
SELECT count(*) FROM pgmq.send_batch('bench', array_fill(:payload::jsonb, ARRAY[100]));

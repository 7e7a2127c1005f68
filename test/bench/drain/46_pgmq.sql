-- title: pgmq, read and delete by 100
-- about: the messages to the client as one string, then delete by their ids
-- needs: pgmq
-- batch: 100
-- clients: 2
-- reset: SELECT pgmq.purge_queue('bench')
-- fill: SELECT count(*) FROM pgmq.send_batch('bench', array_fill(:payload::jsonb, ARRAY[100]))
-- ready: VACUUM ANALYZE pgmq.q_bench
-- left: SELECT count(*) FROM pgmq.q_bench
BEGIN;
SELECT array_agg(msg_id)::text AS ids, string_agg(message::text, '') AS messages FROM pgmq.read('bench', 600, 100) \gset
SELECT count(*) FROM pgmq.delete('bench', :ids::bigint[]);
COMMIT;

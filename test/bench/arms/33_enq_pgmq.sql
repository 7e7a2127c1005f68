-- title: pgmq.send
-- needs: pgmq
-- tables: pgmq.q\_bench
SELECT pgmq.send('bench', :payload::jsonb);
